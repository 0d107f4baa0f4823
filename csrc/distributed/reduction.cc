// SPDX-License-Identifier: Apache-2.0
//
// Compiled with -O3: these loops are to become vector code.
#include <distributed/reduction.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <c10/util/complex.h>

namespace neuron::distributed {
namespace {

// As many elements as the accumulators may take of the first-level cache.
constexpr size_t kBlock = 1024;

template <typename T>
constexpr bool is_complex = c10::is_complex<T>::value;

// A NaN among the operands is the result, as in torch.minimum.
template <typename T>
T smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a < b || std::isnan(a) ? a : b;
  return std::min(a, b);
}

template <typename T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a > b || std::isnan(a) ? a : b;
  return std::max(a, b);
}

template <typename T, typename A, typename Combine>
void reduce_with(c10::ArrayRef<const void*> sources, T* out, size_t count, bool average, const Combine& combine) {
  A accumulators[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t n = std::min(kBlock, count - start);
    const T* first = static_cast<const T*>(sources[0]) + start;
    for (size_t i = 0; i < n; ++i) accumulators[i] = static_cast<A>(first[i]);
    for (const void* source : sources.slice(1)) {
      const T* values = static_cast<const T*>(source) + start;
      for (size_t i = 0; i < n; ++i) accumulators[i] = combine(accumulators[i], static_cast<A>(values[i]));
    }
    if (average) {
      const A ranks = static_cast<A>(sources.size());
      for (size_t i = 0; i < n; ++i) accumulators[i] = accumulators[i] / ranks;
    }
    for (size_t i = 0; i < n; ++i) out[start + i] = static_cast<T>(accumulators[i]);
  }
}

template <typename T>
void reduce_typed(Reduction reduction, c10::ArrayRef<const void*> sources, void* out, size_t count) {
  using A = std::conditional_t<std::is_integral_v<T> || is_complex<T>, T, at::opmath_type<T>>;
  T* result = static_cast<T*>(out);
  const auto run = [&](const auto& combine) {
    reduce_with<T, A>(sources, result, count, reduction == Reduction::Average, combine);
  };
  switch (reduction) {
    case Reduction::Sum:
    case Reduction::Average:
      return run([](A a, A b) { return static_cast<A>(a + b); });
    case Reduction::Product:
      return run([](A a, A b) { return static_cast<A>(a * b); });
    case Reduction::Min:
      if constexpr (!is_complex<T>) return run([](A a, A b) { return smaller(a, b); });
      break;
    case Reduction::Max:
      if constexpr (!is_complex<T>) return run([](A a, A b) { return larger(a, b); });
      break;
    case Reduction::And:
      if constexpr (std::is_integral_v<T>) return run([](A a, A b) { return static_cast<A>(a & b); });
      break;
    case Reduction::Or:
      if constexpr (std::is_integral_v<T>) return run([](A a, A b) { return static_cast<A>(a | b); });
      break;
    case Reduction::Xor:
      if constexpr (std::is_integral_v<T>) return run([](A a, A b) { return static_cast<A>(a ^ b); });
      break;
  }
  TORCH_CHECK(false, name_of(reduction), " is not defined here");  // check_reduction comes first
}

// Truth values: a sum of them is true when any is.
void reduce_bool(Reduction reduction, c10::ArrayRef<const void*> sources, void* out, size_t count) {
  switch (reduction) {
    case Reduction::Sum:
    case Reduction::Max:
    case Reduction::Or:
      return reduce_typed<uint8_t>(Reduction::Or, sources, out, count);
    case Reduction::Xor:
      return reduce_typed<uint8_t>(Reduction::Xor, sources, out, count);
    default:
      return reduce_typed<uint8_t>(Reduction::And, sources, out, count);
  }
}

}  // namespace

void check_reduction(Reduction reduction, c10::ScalarType dtype) {
  const char* name = name_of(reduction);
  const bool bitwise = reduction == Reduction::And || reduction == Reduction::Or || reduction == Reduction::Xor;
  TORCH_CHECK_VALUE(!bitwise || c10::isIntegralType(dtype, /*includeBool=*/true), name,
                    " reduces integers and booleans, but the tensors are ", dtype, ".");
  TORCH_CHECK_VALUE(reduction != Reduction::Average || dtype != c10::ScalarType::Bool,
                    "avg is not defined for booleans; use sum, min or max.");
  TORCH_CHECK_VALUE((reduction != Reduction::Min && reduction != Reduction::Max) || !c10::isComplexType(dtype), name,
                    " is not defined for complex numbers; the tensors are ", dtype, ".");
}

void reduce(Reduction reduction, c10::ScalarType dtype, c10::ArrayRef<const void*> sources, void* out, size_t count) {
  if (count == 0) return;
  if (dtype == c10::ScalarType::Bool) return reduce_bool(reduction, sources, out, count);
  AT_DISPATCH_V2(dtype, "reduce", AT_WRAP([&] { reduce_typed<scalar_t>(reduction, sources, out, count); }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_COMPLEX_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES), c10::ScalarType::Half, c10::ScalarType::BFloat16);
}

}  // namespace neuron::distributed
