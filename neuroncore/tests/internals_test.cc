// SPDX-License-Identifier: Apache-2.0
//
// Parts that need no plugin: the reader of program signatures, the choice of compile options, SHA-256, tar and JSON.

#include <cmath>

#include "../src/compile_options.h"
#include "../src/errors.h"
#include "../src/json.h"
#include "../src/packed_parameters.h"
#include "../src/program_signature.h"
#include "../src/program_work.h"
#include "../src/sha256.h"
#include "../src/tar.h"
#include "check.h"

using namespace neuroncore;

namespace {

ProgramSignature Parse(const std::string& text) {
  ProgramSignature signature;
  if (!ParseSignature(text, &signature)) check::Fail(__FILE__, __LINE__, LastError() + ("\n" + text));
  return signature;
}

bool Refused(const std::string& text) {
  ProgramSignature signature;
  return !ParseSignature(text, &signature);
}

// A program of one f32 parameter and result of that shape, with `statements` between.
std::string Program(const std::string& type, const std::string& statements) {
  return "module {\n  func.func @main(%arg0: " + type + ") -> (" + type + ") {\n" + statements +
         "    func.return %1 : " + type + "\n  }\n}\n";
}

double Work(const std::string& text) { return ProgramWork(text, Parse(text)); }

std::string Unary(const std::string& operation, const std::string& type) {
  return "    %1 = \"stablehlo." + operation + "\"(%arg0) : (" + type + ") -> " + type + "\n";
}

}  // namespace

TEST(work_grows_with_elements_and_with_what_is_done_to_them) {
  const std::string type = "tensor<64x64xf32>";
  const double bytes = 2 * 2 * 64 * 64 * 4;
  const double statement = Work(Program(type, Unary("negate", type))) - Work(Program(type, ""));
  CHECK_EQ(statement, 64 * 64);
  CHECK(Work(Program(type, "")) >= bytes);
  CHECK(Work(Program(type, Unary("tanh", type))) > Work(Program(type, Unary("negate", type))));
  CHECK_EQ(Work(Program(type, Unary("dot_general", type))), Work(Program(type, "")));
  // The largest type of a statement counts: the operand of a reduction, not its result.
  const std::string reduce = "    %1 = \"stablehlo.reduce\"(%arg0, %0) ({\n    }) {dimensions = array<i64: 0>} : (" +
                             type + ", tensor<f32>) -> tensor<64xf32>\n";
  CHECK(Work(Program(type, reduce)) - Work(Program(type, "")) >= 64 * 64);
}

TEST(work_that_the_text_does_not_tell) {
  const std::string type = "tensor<4xf32>";
  CHECK(std::isinf(Work(Program(type, Unary("while", type)))));
  CHECK(std::isinf(Work(Program(type, Unary("convolution", type)))));
  CHECK(std::isinf(Work(Program(type, "    %1 = func.call @f(%arg0) : (" + type + ") -> " + type + "\n"))));
}

TEST(small_programs_are_compiled_for_one_thread) {
  const auto choices = [](const std::string& type) {
    const std::string text = Program(type, Unary("negate", type));
    return ChoicesFor(text, Parse(text), 1);
  };
  CHECK(choices("tensor<64x64xf32>").single_thread);
  CHECK(!choices("tensor<1024x1024xf32>").single_thread);
}

TEST(an_option_that_the_plugin_lacks_is_taken_back) {
  CompileChoices choices{true, true, true};
  const std::string all = CompileOptions(choices);
  CHECK(all.find("cpu-parallel-task-assigner") != std::string::npos);
  CHECK(!choices.TakeBack("out of memory"));
  CHECK(choices.TakeBack("No such compile option: 'xla_cpu_use_fusion_emitters'"));
  CHECK(!choices.older_emitters && choices.single_thread);
  CHECK(!choices.TakeBack("No such compile option: 'xla_cpu_use_fusion_emitters'"));
  CHECK(choices.TakeBack("No such compile option: 'xla_disable_hlo_passes'"));
  CHECK(CompileOptions(choices).find("cpu-parallel-task-assigner") == std::string::npos);
  CHECK(choices.TakeBack("No such compile option: 'xla_cpu_prefer_vector_width'"));
  CHECK_EQ(CompileOptions(choices), CompileOptions(CompileChoices()));
}

TEST(small_parameters_of_a_type_are_packed) {
  const std::string text =
      "module {\n  func.func @main(%a: tensor<f32> {x = 1 : i32}, %b: tensor<2000xf32>, %c: tensor<2x3xf32>, "
      "%d: tensor<i64>, %e: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %f: tensor<5xf32>, %g: tensor<0xf32>, "
      "%h: tensor<17xf32>) -> (tensor<4xf32> {y = \"{\"}) attributes {z = 1 : i32} {\n    return %e\n  }\n}\n";
  const ProgramSignature signature = Parse(text);
  const PackedParameters packed = PackParameters(text, signature);
  CHECK_EQ(packed.vectors.size(), 1u);
  CHECK_EQ(packed.vectors[0].bytes, 5 * 64u);
  const auto offset = [&](size_t i) {
    return packed.places[i].vector == 0 ? static_cast<int>(packed.places[i].offset) : -1;
  };
  const std::vector<int> offsets{offset(0), offset(1), offset(2), offset(3),
                                 offset(4), offset(5), offset(6), offset(7)};
  CHECK(offsets == (std::vector<int>{0, -1, 64, -1, -1, 128, -1, 192}));
  CHECK_EQ(packed.num_arguments, 5u);  // the vector, b, d, e, g
  const ProgramSignature changed = Parse(PackedProgram(text, signature, packed));
  CHECK_EQ(changed.parameters.size(), packed.num_arguments);
  CHECK_EQ(changed.parameters[0].type.text, "tensor<80xf32>");
  CHECK_EQ(changed.parameters[packed.places[1].argument].name, "b");
  CHECK_EQ(changed.parameters[packed.places[3].argument].name, "d");
  CHECK_EQ(changed.parameters[packed.places[4].argument].aliased_output, 0);
  CHECK_EQ(changed.results.size(), 1u);
  CHECK(PackedProgram(text, signature, packed).find("%c = \"stablehlo.reshape\"(%neuroncore_slice2)") !=
        std::string::npos);
}

TEST(few_small_parameters_stay_as_they_are) {
  const std::string text =
      "module {\n  func.func @main(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<i64>) -> tensor<f32> "
      "{\n    return %a\n  }\n}\n";
  const ProgramSignature signature = Parse(text);
  const PackedParameters packed = PackParameters(text, signature);
  CHECK_EQ(packed.num_arguments, 4u);
  CHECK_EQ(PackedProgram(text, signature, packed), text);
}

TEST(the_parameters_of_a_program_with_much_work_stay_as_they_are) {
  const std::string text =
      "module {\n  func.func @main(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>, "
      "%e: tensor<9000000xf32>) -> tensor<9000000xf32> {\n    return %e\n  }\n}\n";
  CHECK(PackParameters(text, Parse(text)).vectors.empty());
}

TEST(a_plain_signature) {
  ProgramSignature s =
      Parse("module @add {\n  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<i64>) -> tensor<4xbf16> {");
  CHECK_EQ(s.module_name, "add");
  CHECK_EQ(s.parameters.size(), 2u);
  CHECK_EQ(s.num_inputs, 2u);
  CHECK(s.parameters[0].type.dims == (std::vector<int64_t>{4, 8}));
  CHECK_EQ(s.parameters[0].type.bytes, 128u);
  CHECK_EQ(s.parameters[1].type.bytes, 8u);
  CHECK(s.parameters[1].type.dims.empty());
  CHECK_EQ(s.results.size(), 1u);
  CHECK_EQ(s.results[0].bytes, 8u);
  CHECK_EQ(s.parameters[0].aliased_output, -1);
}

TEST(attributes_locations_and_odd_spaces) {
  ProgramSignature s = Parse(R"(#loc = loc("func.func @main(")
module @m attributes {mhlo.num_partitions = 1 : i32, note = "a } b"} {
  func.func private @helper(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }
  func.func @main (
      %x : tensor<2xf32> {a = {b = ")}\"", c = [1, 2]}, tf.aliasing_output = 1:i32} loc("x.py":1:2),  // first, second
      %y: tensor<3xcomplex<f32>, #encoding> loc(#loc1)
  ) -> ( tensor<2xi1> {jax.result_info = "[0]"} , tensor<2xf32> ) {)");
  CHECK_EQ(s.module_name, "m");
  CHECK_EQ(s.parameters.size(), 2u);
  CHECK_EQ(s.parameters[0].aliased_output, 1);
  CHECK_EQ(s.parameters[1].type.element_name, "complex<f32>");
  CHECK_EQ(s.parameters[1].type.bytes, 24u);
  CHECK_EQ(s.results.size(), 2u);
  CHECK_EQ(s.results[0].bytes, 2u);
}

TEST(no_parameters_no_results_no_elements) {
  CHECK_EQ(Parse("func.func @main() { return }").results.size(), 0u);
  CHECK_EQ(Parse("func.func @main() -> () { return }").results.size(), 0u);
  CHECK_EQ(Parse("func.func @main(%x: tensor<0x4xf32>)").parameters[0].type.bytes, 0u);
}

TEST(what_cannot_be_read_is_refused) {
  CHECK(Refused(""));
  CHECK(Refused("func.func @maintain(%x: tensor<2xf32>)"));
  CHECK(Refused("func.func @main(%x: tensor<?xf32>)"));
  CHECK(Refused("func.func @main(%x: tensor<*xf32>)"));
  CHECK(Refused("func.func @main(%x: f32)"));
  CHECK(Refused("func.func @main(%x: tensor<2xf32>"));
  CHECK(Refused("func.func @main(%x: tensor<2xf32"));
  CHECK(Refused("func.func @main(%x: tensor<2xf32> {a = \"})"));
  CHECK(Refused("func.func @main(%x tensor<2xf32>)"));
  CHECK(Refused("func.func @main(%x: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<3xf32>"));
  CHECK(Refused("func.func @main(%x: tensor<2xf32> {tf.aliasing_output = 5 : i32}) -> tensor<2xf32>"));
}

TEST(scratch_parameters) {
  auto add = [](const std::string& text) { return AddScratchParameters(text, Parse(text)); };
  std::string small = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32>";
  CHECK_EQ(add(small), small);
  std::string large = add("func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<1048576xi8>) {");
  CHECK_CONTAINS(large, "%x: tensor<4xf32>, %neuroncore_scratch1: tensor<1048576xi8> {tf.aliasing_output = 1 : i32})");
  ProgramSignature s = Parse(large);
  CHECK_EQ(s.num_inputs, 1u);
  CHECK(s.parameters[1].scratch);
  CHECK_EQ(s.parameters[1].aliased_output, 1);
  CHECK_EQ(add(large), large);  // not twice
  CHECK_CONTAINS(add("func.func @main() -> tensor<1048576xi8>"), "@main(%neuroncore_scratch0: ");
  std::string aliased = "func.func @main(%x: tensor<1048576xi8> {tf.aliasing_output = 0 : i32}) -> tensor<1048576xi8>";
  CHECK_EQ(add(aliased), aliased);
}

TEST(sha256_vectors) {
  CHECK_EQ(Sha256::Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(Sha256::Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(Sha256::Hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  Sha256 parts;
  parts.Update("a", 1);
  parts.Update("bc", 2);
  CHECK(parts.Finish() == Sha256::Of("abc", 3));
}

TEST(tar_round_trip) {
  TarWriter writer;
  writer.Add("a.txt", "hello");
  writer.Add("empty", "");
  writer.Add("block", std::string(512, 'x'));
  std::string archive = writer.Finish();
  CHECK_EQ(archive.size() % 512, 0u);
  std::map<std::string, std::string_view> files;
  CHECK(ReadTar(archive, &files));
  CHECK_EQ(files.size(), 3u);
  CHECK_EQ(files["a.txt"], "hello");
  CHECK_EQ(files["block"].size(), 512u);
  for (size_t size : {size_t{0}, size_t{100}, size_t{600}, archive.size() - 1024}) {
    std::map<std::string, std::string_view> partial;
    CHECK(!ReadTar(std::string_view(archive).substr(0, size), &partial));
  }
  archive[0] = 'b';
  CHECK(!ReadTar(archive, &files));
}

TEST(json) {
  for (const char* text : {"{}", " {\"a\": [1, {\"b\": \"}\"}]} ", "{\"\\\"\": 1}"}) CHECK(IsJsonObject(text));
  for (const char* text : {"", "[]", "{", "{}}", "{} {}", "{\"a}", "1"}) CHECK(!IsJsonObject(text));
  JsonWriter json;
  json.BeginObject();
  json.MembersOf("{ \"x\": 1 }");
  json.MembersOf("{}");
  json.Member("t", std::string_view("a\"b\\\n"));
  json.BeginArray("list");
  json.Element(1);
  json.Element("two");
  json.EndArray();
  json.Member("n", 0.5);
  json.Member("i", int64_t{7});
  json.EndObject();
  CHECK_EQ(json.text(), R"({"x": 1, "t": "a\"b\\\u000a", "list": [1, "two"], "n": 0.5, "i": 7})");
}

int main() { return check::RunAll(); }
