// SPDX-License-Identifier: Apache-2.0
#include <distributed/transport.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <distributed/reduction.h>

namespace neuron::distributed {
namespace {

// Below this everybody sends everything and reduces by itself: one step instead of two.
constexpr size_t kOneStepBytes = 4096;
// As much of each part is reduced at a time: what has come in is still in the cache then.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

void Transport::all_reduce(const Collective& call, Deadline deadline, const char* in, char* out) {
  const auto ranks = static_cast<size_t>(size());
  const auto elements = static_cast<size_t>(call.elements);
  const size_t item = c10::elementSize(call.dtype);
  if (elements * item <= kOneStepBytes) {
    std::vector<char> all(ranks * elements * item);
    std::vector<ReceiveBytes> from;
    std::vector<const void*> sources;
    for (size_t r = 0; r < ranks; ++r) {
      from.push_back({all.data() + r * elements * item, elements * item});
      sources.push_back(from.back().data);
    }
    exchange(call, deadline, SendBytes{in, elements * item}, from);
    return reduce(call.reduction, call.dtype, sources, out, elements);
  }
  std::vector<size_t> counts(ranks, elements / ranks);
  for (size_t r = 0; r < elements % ranks; ++r) ++counts[r];
  std::vector<const char*> parts;
  std::vector<ReceiveBytes> results;
  for (size_t r = 0, start = 0; r < ranks; start += counts[r++]) {
    parts.push_back(in + start * item);
    results.push_back({out + start * item, counts[r] * item});
  }
  const ReceiveBytes mine = results[static_cast<size_t>(rank())];
  reduce_scatter(call, deadline, parts, counts, mine.data);
  exchange(call, deadline, SendBytes{mine.data, mine.size}, results);
}

void Transport::reduce_scatter(const Collective& call, Deadline deadline, c10::ArrayRef<const char*> in,
                               c10::ArrayRef<size_t> counts, char* out) {
  const size_t item = c10::elementSize(call.dtype);
  const auto me = static_cast<size_t>(rank());
  const size_t step = kPieceBytes / item;  // in elements
  const size_t longest = *std::max_element(counts.begin(), counts.end());
  // Not cleared: everything that is read has come from a rank.
  const size_t room = std::min(counts[me], step) * item;
  const std::unique_ptr<char[]> received(new char[in.size() * room]);
  size_t start = 0;
  do {
    const auto extent = [&](size_t r) { return counts[r] > start ? std::min(step, counts[r] - start) : 0; };
    std::vector<SendBytes> to;
    std::vector<ReceiveBytes> from;
    std::vector<const void*> sources;
    for (size_t r = 0; r < in.size(); ++r) {
      char* place = received.get() + r * room;
      to.push_back({in[r] + (extent(r) > 0 ? start * item : 0), extent(r) * item});
      from.push_back({place, extent(me) * item, r != me});
      sources.push_back(r == me ? in[r] + start * item : place);
    }
    exchange(call, deadline, to, from);
    reduce(call.reduction, call.dtype, sources, out + start * item, extent(me));
    start += step;
  } while (start < longest);
}

std::exception_ptr backend_error(const std::string& message) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, message));
}

std::vector<ReceiveBytes> equal_parts(char* data, size_t part_bytes, size_t count) {
  std::vector<ReceiveBytes> parts;
  for (size_t i = 0; i < count; ++i) parts.push_back({data + i * part_bytes, part_bytes});
  return parts;
}

void meet(Transport& transport, const Collective& call, Deadline deadline) {
  const std::vector<ReceiveBytes> from(static_cast<size_t>(transport.size()));
  transport.exchange(call, deadline, SendBytes{}, from);
}

void broadcast_bytes(Transport& transport, const Collective& call, Deadline deadline, char* data, size_t bytes) {
  const bool is_root = call.root == transport.rank();
  std::vector<ReceiveBytes> from(static_cast<size_t>(transport.size()));
  if (!is_root) from[static_cast<size_t>(call.root)] = {data, bytes};
  from[static_cast<size_t>(transport.rank())].wanted = false;
  transport.exchange(call, deadline, is_root ? SendBytes{data, bytes} : SendBytes{}, from);
}

}  // namespace neuron::distributed
