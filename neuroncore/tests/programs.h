// SPDX-License-Identifier: Apache-2.0
//
// StableHLO texts for tests and benchmarks.
#pragma once

#include <string>

namespace programs {

inline std::string Module(const std::string& signature, const std::string& body) {
  return "module @test {\n  func.func public @main" + signature + " {\n" + body + "  }\n}\n";
}

// (x, y) -> x + y
inline std::string Add(const std::string& type, const std::string& x_attributes = "") {
  return Module("(%x: " + type + x_attributes + ", %y: " + type + ") -> " + type,
                "    %0 = stablehlo.add %x, %y : " + type + "\n    return %0 : " + type + "\n");
}

// x -> x + x
inline std::string Double(const std::string& type) {
  return Module("(%x: " + type + ") -> " + type,
                "    %0 = stablehlo.add %x, %x : " + type + "\n    return %0 : " + type + "\n");
}

inline std::string Shape(int rows, int columns) {
  return "tensor<" + std::to_string(rows) + "x" + std::to_string(columns) + "xf32>";
}

// The sum or maximum over the columns.
inline std::string Reduce(const std::string& result, const std::string& operand, const std::string& operation,
                          const std::string& initial, int rows, int columns) {
  std::string vector = "tensor<" + std::to_string(rows) + "xf32>";
  return "    %i" + result + " = stablehlo.constant dense<" + initial + "> : tensor<f32>\n    %" + result +
         " = stablehlo.reduce(%" + operand + " init: %i" + result + ") applies stablehlo." + operation +
         " across dimensions = [1] : (" + Shape(rows, columns) + ", tensor<f32>) -> " + vector + "\n";
}

inline std::string Spread(const std::string& result, const std::string& operand, int rows, int columns) {
  return "    %" + result + " = stablehlo.broadcast_in_dim %" + operand + ", dims = [0] : (tensor<" +
         std::to_string(rows) + "xf32>) -> " + Shape(rows, columns) + "\n";
}

inline std::string Softmax(int rows, int columns) {
  std::string type = Shape(rows, columns);
  return Module("(%x: " + type + ") -> " + type,
                Reduce("m", "x", "maximum", "0xFF800000", rows, columns) + Spread("mb", "m", rows, columns) +
                    "    %s = stablehlo.subtract %x, %mb : " + type + "\n    %e = stablehlo.exponential %s : " + type +
                    "\n" + Reduce("t", "e", "add", "0.0", rows, columns) + Spread("tb", "t", rows, columns) +
                    "    %r = stablehlo.divide %e, %tb : " + type + "\n    return %r : " + type + "\n");
}

inline std::string LayerNorm(int rows, int columns) {
  std::string type = Shape(rows, columns);
  std::string row = "tensor<" + std::to_string(columns) + "xf32>";
  std::string vector = "tensor<" + std::to_string(rows) + "xf32>";
  std::string body =
      Reduce("t", "x", "add", "0.0", rows, columns) + "    %n = stablehlo.constant dense<" + std::to_string(columns) +
      ".0> : " + vector + "\n    %mean = stablehlo.divide %t, %n : " + vector + "\n" +
      Spread("mb", "mean", rows, columns) + "    %c = stablehlo.subtract %x, %mb : " + type +
      "\n    %q = stablehlo.multiply %c, %c : " + type + "\n" + Reduce("v", "q", "add", "0.0", rows, columns) +
      "    %var = stablehlo.divide %v, %n : " + vector + "\n    %eps = stablehlo.constant dense<1.0e-5> : " + vector +
      "\n    %ve = stablehlo.add %var, %eps : " + vector + "\n    %rs = stablehlo.rsqrt %ve : " + vector + "\n" +
      Spread("rb", "rs", rows, columns) + "    %h = stablehlo.multiply %c, %rb : " + type +
      "\n    %wb = stablehlo.broadcast_in_dim %w, dims = [1] : (" + row + ") -> " + type +
      "\n    %bb = stablehlo.broadcast_in_dim %b, dims = [1] : (" + row + ") -> " + type +
      "\n    %hw = stablehlo.multiply %h, %wb : " + type + "\n    %r = stablehlo.add %hw, %bb : " + type +
      "\n    return %r : " + type + "\n";
  return Module("(%x: " + type + ", %w: " + row + ", %b: " + row + ") -> " + type, body);
}

inline std::string MatrixMultiply(int rows, int inner, int columns) {
  std::string a = Shape(rows, inner), b = Shape(inner, columns), c = Shape(rows, columns);
  return Module("(%x: " + a + ", %y: " + b + ") -> " + c,
                "    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (" + a + ", " + b + ") -> " + c +
                    "\n    return %0 : " + c + "\n");
}

// gelu-like chain: elementwise work with a transcendental
inline std::string Gelu(int rows, int columns) {
  std::string type = Shape(rows, columns);
  return Module(
      "(%x: " + type + ") -> " + type,
      "    %c = stablehlo.constant dense<0.797884583> : " + type + "\n    %d = stablehlo.constant dense<0.044715> : " +
          type + "\n    %h = stablehlo.constant dense<0.5> : " + type +
          "\n    %one = stablehlo.constant dense<1.0> : " + type + "\n    %x2 = stablehlo.multiply %x, %x : " + type +
          "\n    %x3 = stablehlo.multiply %x2, %x : " + type + "\n    %a = stablehlo.multiply %x3, %d : " + type +
          "\n    %s = stablehlo.add %x, %a : " + type + "\n    %t = stablehlo.multiply %s, %c : " + type +
          "\n    %th = stablehlo.tanh %t : " + type + "\n    %u = stablehlo.add %th, %one : " + type +
          "\n    %v = stablehlo.multiply %u, %h : " + type + "\n    %r = stablehlo.multiply %v, %x : " + type +
          "\n    return %r : " + type + "\n");
}

// x -> transpose(x) * 2, a pass that is bound by memory access
inline std::string Transpose(int rows, int columns) {
  std::string type = Shape(rows, columns), turned = Shape(columns, rows);
  return Module("(%x: " + type + ") -> " + turned,
                "    %t = stablehlo.transpose %x, dims = [1, 0] : (" + type + ") -> " + turned +
                    "\n    %r = stablehlo.add %t, %t : " + turned + "\n    return %r : " + turned + "\n");
}

// The sum over the rows.
inline std::string ColumnSum(int rows, int columns) {
  std::string row = "tensor<" + std::to_string(columns) + "xf32>";
  return Module("(%x: " + Shape(rows, columns) + ") -> " + row,
                "    %i = stablehlo.constant dense<0.0> : tensor<f32>\n    %r = stablehlo.reduce(%x init: %i) applies "
                "stablehlo.add across dimensions = [0] : (" +
                    Shape(rows, columns) + ", tensor<f32>) -> " + row + "\n    return %r : " + row + "\n");
}

// silu in bf16, computed in f32
inline std::string SiluBF16(int rows, int columns) {
  std::string wide = Shape(rows, columns);
  std::string type = wide.substr(0, wide.size() - 4) + "bf16>";
  return Module("(%x: " + type + ") -> " + type,
                "    %w = stablehlo.convert %x : (" + type + ") -> " + wide +
                    "\n    %l = stablehlo.logistic %w : " + wide + "\n    %m = stablehlo.multiply %w, %l : " + wide +
                    "\n    %r = stablehlo.convert %m : (" + wide + ") -> " + type + "\n    return %r : " + type + "\n");
}

}  // namespace programs
