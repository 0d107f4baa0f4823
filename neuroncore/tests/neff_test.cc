// SPDX-License-Identifier: Apache-2.0
//
// Compiling to a NEFF and loading it: what is refused, and with which status.

#include "device.h"

namespace {

const std::string& Neff() {
  static const std::string neff = Compile(programs::Add("tensor<4xf32>"), 0, R"({"operator": "aten::add"})");
  return neff;
}

NRT_STATUS TryLoad(const std::string& neff) {
  nrt_model_t* model = nullptr;
  NRT_STATUS status = nrt_load(neff.data(), neff.size(), 0, 1, &model);
  if (status == NRT_SUCCESS) nrt_unload(model);
  return status;
}

std::string CompileError(const std::string& program, const char* metadata = nullptr, int level = 0) {
  void* neff = nullptr;
  size_t size = 0;
  char* error = nullptr;
  NRT_STATUS status = neuroncore_compile(program.data(), program.size(), metadata, level, &neff, &size, &error);
  CHECK(status != NRT_SUCCESS);
  CHECK(neff == nullptr);
  CHECK(error != nullptr);
  std::string text = error;
  neuroncore_free(error);
  CHECK_EQ(text, neuroncore_last_error());
  return text;
}

}  // namespace

TEST(the_file_says_what_it_is) {
  CHECK_EQ(Neff().substr(220, 13), "software:test");
  CHECK_EQ(Neff().substr(40, 8), "software");
  for (const char* part : {"\"operator\": \"aten::add\"", "\"inputs\"", "\"input1\"", "\"compile_ms\"",
                           "\"fingerprint\"", "\"f32\"", "program.mlir"}) {
    CHECK_CONTAINS(Neff(), part);
  }
}

TEST(scratch_parameters_are_in_the_file) {
  std::string neff = Compile(programs::Add("tensor<1048576xf32>"));
  CHECK_CONTAINS(neff, "\"scratch\": [\"output0\"]");
  CHECK_CONTAINS(neff, "%neuroncore_scratch0: tensor<1048576xf32> {tf.aliasing_output = 0 : i32}");
}

TEST(an_intact_file_loads_on_any_core) {
  nrt_model_t* model;
  for (int vnc : {-1, 0, 3}) {
    OK(nrt_load(Neff().data(), Neff().size(), vnc, -1, &model));
    OK(nrt_unload(model));
  }
  OK(nrt_load_collectives(Neff().data(), Neff().size(), 0, 1, 0, 1, &model));
  OK(nrt_unload(model));
  FAILS(nrt_load(Neff().data(), Neff().size(), 99, 1, &model), NRT_INVALID);
  FAILS(nrt_load(Neff().data(), Neff().size(), 0, 2, &model), NRT_INVALID);
  FAILS(nrt_load(nullptr, 0, 0, 1, &model), NRT_INVALID);
}

TEST(damaged_files_are_refused) {
  FAILS(TryLoad(""), NRT_INVALID);
  FAILS(TryLoad("rubbish"), NRT_INVALID);
  FAILS(TryLoad(std::string(4096, 'x')), NRT_INVALID);
  for (size_t size : {size_t{100}, size_t{1024}, size_t{1500}, Neff().size() - 512, Neff().size() - 1}) {
    FAILS(TryLoad(Neff().substr(0, size)), NRT_INVALID);
  }
  FAILS(TryLoad(Neff() + "x"), NRT_INVALID);
  for (size_t place : {size_t{1024}, size_t{3000}, Neff().size() / 2, Neff().size() - 1100}) {
    std::string damaged = Neff();
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    FAILS(TryLoad(damaged), NRT_INVALID);
    CHECK_CONTAINS(neuroncore_last_error(), "SHA-256");
  }
}

TEST(foreign_files_are_unsupported) {
  std::string foreign = Neff();
  foreign[24] = 2;  // version_major, little endian
  foreign[25] = 0;
  FAILS(TryLoad(foreign), NRT_UNSUPPORTED_NEFF_VERSION);
  foreign = Neff();
  foreign.replace(40, 8, "2.32.1.0");
  FAILS(TryLoad(foreign), NRT_UNSUPPORTED_NEFF_VERSION);
  CHECK_CONTAINS(neuroncore_last_error(), "compile it again");
}

TEST(programs_that_do_not_compile) {
  CHECK_CONTAINS(CompileError("nonsense"), "@main");
  CHECK_CONTAINS(CompileError(programs::Add("tensor<?xf32>")), "static");
  CHECK_CONTAINS(CompileError(programs::Add("tensor<4xi3>")), "element type");
  CHECK_CONTAINS(CompileError(programs::Module("(%x: tensor<4xf32> {tf.aliasing_output = 3 : i32}) -> tensor<4xf32>",
                                               "    return %x : tensor<4xf32>\n")),
                 "output 3");
  std::string unknown = CompileError(programs::Module("(%x: tensor<4xf32>) -> tensor<4xf32>",
                                                      "    %0 = stablehlo.no_such_operation %x : tensor<4xf32>\n"
                                                      "    return %0 : tensor<4xf32>\n"));
  CHECK(!unknown.empty());
  std::string program = programs::Add("tensor<4xf32>");
  CHECK_CONTAINS(CompileError(program, "[1, 2]"), "JSON");
  CHECK_CONTAINS(CompileError(program, "{\"a\": 1"), "JSON");
  CHECK_CONTAINS(CompileError(program, nullptr, 7), "optimize_level");
}

TEST(equal_programs_give_equal_executables) {
  // Caches rely on names and times being the only difference.
  std::string again = Compile(programs::Add("tensor<4xf32>"), 0, R"({"operator": "aten::add"})");
  size_t program = Neff().find("module @test"), program_again = again.find("module @test");
  CHECK(program != std::string::npos && program_again != std::string::npos);
  CHECK_EQ(Neff().substr(program, 200), again.substr(program_again, 200));
}

int main() { return RunOnDevice(); }
