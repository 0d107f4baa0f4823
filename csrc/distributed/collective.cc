// SPDX-License-Identifier: Apache-2.0
#include <distributed/collective.h>

#include <algorithm>

#include <c10/util/StringUtil.h>

namespace neuron::distributed {
namespace {

bool reduces(Kind kind) { return kind == Kind::AllReduce || kind == Kind::Reduce || kind == Kind::ReduceScatter; }

// PyTorch's Python name, without the prefix "torch.".
std::string dtype_name(c10::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

}  // namespace

void Collective::set_shape(c10::IntArrayRef sizes) {
  rank = static_cast<int8_t>(std::min(sizes.size(), kDims + 1));
  std::copy_n(sizes.begin(), std::min(sizes.size(), kDims), dims.begin());
}

bool Collective::matches(const Collective& other) const {
  if (kind != other.kind || sequence != other.sequence || root != other.root) return false;
  if (kind == Kind::Barrier) return true;
  if (dtype != other.dtype) return false;
  if (kind == Kind::Broadcast) return elements == other.elements;
  return !reduces(kind) || (reduction == other.reduction && elements == other.elements);
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::Barrier:
      return "barrier";
    case Kind::AllReduce:
      return "all_reduce";
    case Kind::Reduce:
      return "reduce";
    case Kind::ReduceScatter:
      return "reduce_scatter";
    case Kind::Broadcast:
      return "broadcast";
    case Kind::AllGather:
      return "all_gather";
    case Kind::Gather:
      return "gather";
    case Kind::Scatter:
      return "scatter";
    case Kind::AllToAll:
      return "all_to_all";
  }
  return "collective";
}

const char* name_of(Reduction reduction) {
  constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "bitwise and", "bitwise or", "bitwise xor"};
  return kNames[static_cast<size_t>(reduction)];
}

std::string describe(const Collective& call) {
  std::string text = c10::str(name_of(call.kind), " #", call.sequence);
  if (reduces(call.kind)) text += c10::str(" (", name_of(call.reduction), ")");
  if (call.root >= 0)
    text +=
        c10::str(call.kind == Kind::Broadcast || call.kind == Kind::Scatter ? " from " : " to ", "rank ", call.root);
  if (call.kind == Kind::Barrier) return text;
  text += " of " + dtype_name(call.dtype) + " [";
  const auto shown = std::min<size_t>(static_cast<size_t>(call.rank), Collective::kDims);
  for (size_t i = 0; i < shown; ++i) text += c10::str(i > 0 ? ", " : "", call.dims[i]);
  return text + (static_cast<size_t>(call.rank) > shown ? ", ...]" : "]");
}

Deadline deadline_in(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::min(timeout, kLongest);
}

}  // namespace neuron::distributed
