// SPDX-License-Identifier: Apache-2.0
//
// Element types, scalars and tensors without elements.

#include <complex>

#include "device.h"

namespace {

// x + x over two elements of the type.
template <class T>
std::vector<T> Doubled(const std::string& element, const std::vector<T>& values) {
  Model add(programs::Double("tensor<" + std::to_string(values.size()) + "x" + element + ">"));
  Tensor x(values), out(values.size() * sizeof(T));
  add.Run({&x}, {&out});
  return out.Read<T>();
}

}  // namespace

TEST(numbers) {
  CHECK(Doubled<float>("f32", {1.5f, -2}) == (std::vector<float>{3, -4}));
  CHECK(Doubled<double>("f64", {1e300, -2}) == (std::vector<double>{2e300, -4}));
  CHECK(Doubled<int8_t>("i8", {100, -2}) == (std::vector<int8_t>{-56, -4}));
  CHECK(Doubled<int16_t>("i16", {300, -2}) == (std::vector<int16_t>{600, -4}));
  CHECK(Doubled<int32_t>("i32", {1 << 30, -2}) == (std::vector<int32_t>{INT32_MIN, -4}));
  CHECK(Doubled<int64_t>("i64", {int64_t{1} << 40, -2}) == (std::vector<int64_t>{int64_t{1} << 41, -4}));
  CHECK(Doubled<uint8_t>("ui8", {200, 2}) == (std::vector<uint8_t>{144, 4}));
  CHECK(Doubled<uint64_t>("ui64", {UINT64_MAX, 2}) == (std::vector<uint64_t>{UINT64_MAX - 1, 4}));
  CHECK(Doubled<uint16_t>("bf16", {0x3f80, 0xc000}) == (std::vector<uint16_t>{0x4000, 0xc080}));  // 1, -2
  CHECK(Doubled<uint16_t>("f16", {0x3c00, 0xc000}) == (std::vector<uint16_t>{0x4000, 0xc400}));
  using Complex = std::complex<float>;
  CHECK(Doubled<Complex>("complex<f32>", {{1, 2}, {-3, 4}}) == (std::vector<Complex>{{2, 4}, {-6, 8}}));
  using Complex128 = std::complex<double>;
  CHECK(Doubled<Complex128>("complex<f64>", {{1, 2}, {-3, 4}}) == (std::vector<Complex128>{{2, 4}, {-6, 8}}));
}

TEST(booleans) {
  Model less(
      programs::Module("(%x: tensor<3xf32>, %m: tensor<3xi1>) -> tensor<3xi1>",
                       "    %z = stablehlo.constant dense<0.0> : tensor<3xf32>\n    %0 = stablehlo.compare LT, %x, "
                       "%z : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xi1>\n    %1 = stablehlo.xor %0, %m : "
                       "tensor<3xi1>\n    return %1 : tensor<3xi1>\n"));
  Tensor x(std::vector<float>{-1, 0, 1}), mask(std::vector<uint8_t>{0, 1, 0}), out(3);
  less.Run({&x, &mask}, {&out});
  CHECK(out.Read<uint8_t>() == (std::vector<uint8_t>{1, 1, 0}));
}

TEST(eight_bit_floats) {
  for (const char* element : {"f8E5M2", "f8E4M3FN", "f8E4M3", "f8E3M4"}) {
    std::string type = std::string("tensor<2x") + element + ">";
    Model widen(programs::Module(
        "(%x: " + type + ") -> tensor<2xf32>",
        "    %0 = stablehlo.convert %x : (" + type + ") -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n"));
    Tensor x(std::vector<uint8_t>{0, 0x80}), out(8);
    widen.Run({&x}, {&out});
    CHECK(out.Floats() == (std::vector<float>{0, 0}));
  }
}

TEST(scalars) {
  Model add(programs::Add("tensor<f32>"));
  Tensor x(std::vector<float>{1.5f}), out(4);
  add.Run({&x, &x}, {&out});
  CHECK(out.Floats() == (std::vector<float>{3}));
}

TEST(tensors_without_elements) {
  Model add(programs::Add("tensor<0x4xf32>"));
  Tensor nothing(size_t{0}), out(size_t{0}), large(64);
  add.Run({&nothing, &nothing}, {&out});
  large.Write(std::vector<float>{5});
  add.Run({&large, &nothing}, {&large});  // an output without bytes writes none
  CHECK_EQ(large.Floats()[0], 5.0f);
  // The sum of nothing.
  Model sum(programs::Module("(%x: tensor<0xf32>, %y: tensor<2xf32>) -> (tensor<f32>, tensor<0xf32>)",
                             "    %i = stablehlo.constant dense<7.0> : tensor<f32>\n    %0 = stablehlo.reduce(%x init: "
                             "%i) applies stablehlo.add across dimensions = [0] : (tensor<0xf32>, tensor<f32>) -> "
                             "tensor<f32>\n    return %0, %x : tensor<f32>, tensor<0xf32>\n"));
  Tensor y(std::vector<float>{1, 2}), total(4);
  sum.Run({&nothing, &y}, {&total, &out});
  CHECK_EQ(total.Floats()[0], 7.0f);
}

TEST(programs_without_inputs_or_outputs) {
  Model constant(programs::Module("() -> tensor<2xf32>",
                                  "    %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>\n    return %0 : "
                                  "tensor<2xf32>\n"));
  Tensor out(8);
  constant.Run({}, {&out});
  CHECK(out.Floats() == (std::vector<float>{1, 2}));
  Model large(programs::Module("() -> tensor<524288xf32>",
                               "    %0 = stablehlo.constant dense<1.0> : tensor<524288xf32>\n    return %0 : "
                               "tensor<524288xf32>\n"));
  Tensor big(524288 * 4);
  large.Run({}, {&big});
  CHECK_EQ(big.Floats()[524287], 1.0f);
  Model sink(programs::Module("(%x: tensor<2xf32>)", "    return\n"));
  sink.Run({&out}, {});
}

TEST(a_parameter_returned_as_it_is) {
  Model identity(programs::Module("(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)",
                                  "    return %x, %x : tensor<2xf32>, tensor<2xf32>\n"));
  Tensor x(std::vector<float>{1, 2}), a(8), b(8);
  identity.Run({&x}, {&a, &b});
  a.Write(std::vector<float>{9, 9});
  CHECK(x.Floats() == (std::vector<float>{1, 2}));
  CHECK(b.Floats() == (std::vector<float>{1, 2}));
}

TEST(denormals_are_flushed) {
  // Documented behaviour of the device.
  std::vector<float> doubled = Doubled<float>("f32", {1e-39f, 1});
  CHECK(doubled == (std::vector<float>{0, 2}));
}

int main() { return RunOnDevice(); }
