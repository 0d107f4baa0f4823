// SPDX-License-Identifier: Apache-2.0
//
// nrt_execute: what is adopted, updated in place, reused or copied; and that none of it changes a result.

#include "device.h"

using Floats = std::vector<float>;

namespace {

constexpr const char* kAlias = " {tf.aliasing_output = 0 : i32}";
constexpr size_t kLarge = size_t{1} << 19;  // elements; 2 MiB, so that scratch parameters are added
const std::string kLargeType = "tensor<" + std::to_string(kLarge) + "xf32>";

Floats Filled(size_t count, float value) { return Floats(count, value); }

}  // namespace

TEST(results_are_adopted_without_a_copy) {
  Model add(programs::Add("tensor<8xf32>"));
  Tensor x(Filled(8, 1)), y(Filled(8, 2)), out(32);
  auto before = Statistics();
  add.Run({&x, &y}, {&out});
  auto after = Statistics();
  CHECK(out.Floats() == Filled(8, 3));
  CHECK_EQ(after.executions - before.executions, 1u);
  CHECK_EQ(after.bytes_adopted - before.bytes_adopted, 32u);
  CHECK_EQ(after.bytes_copied, before.bytes_copied);
  CHECK_EQ(after.views_created, before.views_created);
  CHECK(after.execution_ns > before.execution_ns);
  CHECK_EQ(neuroncore_execution_time_ns(0), after.execution_ns);
  // The result feeds the next program as it is.
  add.Run({&out, &y}, {&x});
  CHECK(x.Floats() == Filled(8, 5));
  CHECK_EQ(Statistics().views_created, before.views_created);
}

TEST(a_result_is_seen_through_slices) {
  Model add(programs::Add("tensor<8xf32>"));
  Tensor x(Floats{0, 1, 2, 3, 4, 5, 6, 7}), out(32);
  Tensor slice(out, 16, 8);
  add.Run({&x, &x}, {&out});
  CHECK(slice.Floats() == (Floats{8, 10}));
}

TEST(a_slice_that_covers_its_parent_adopts) {
  Model add(programs::Add("tensor<8xf32>"));
  Tensor x(Filled(8, 1)), out(32);
  Tensor whole(out, 0, 32);
  auto before = Statistics();
  add.Run({&x, &x}, {&whole});
  CHECK_EQ(Statistics().bytes_copied, before.bytes_copied);
  CHECK(out.Floats() == Filled(8, 2));
}

TEST(results_are_copied_into_slices) {
  Model add(programs::Add("tensor<4xf32>"));
  Tensor x(Floats{1, 2, 3, 4}), parent(64);
  Tensor middle(parent, 20, 16);  // of a parent that was never written, at an odd place
  auto before = Statistics();
  add.Run({&x, &x}, {&middle});
  CHECK_EQ(Statistics().bytes_copied - before.bytes_copied, 16u);
  CHECK(parent.Floats() == (Floats{0, 0, 0, 0, 0, 2, 4, 6, 8, 0, 0, 0, 0, 0, 0, 0}));
  Tensor first(parent, 0, 16);
  add.Run({&middle, &x}, {&first});
  CHECK(parent.Floats() == (Floats{3, 6, 9, 12, 0, 2, 4, 6, 8, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(slices_are_operands) {
  Model add(programs::Add("tensor<4xf32>"));
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Tensor parent(values), out(16);
  Tensor aligned(parent, 64, 16), odd(parent, 4, 16);
  auto before = Statistics();
  add.Run({&aligned, &odd}, {&out});
  CHECK(out.Floats() == (Floats{17, 19, 21, 23}));
  auto after = Statistics();
  CHECK_EQ(after.views_created - before.views_created, 1u);
  CHECK_EQ(after.bytes_copied - before.bytes_copied, 16u);  // the unaligned one
  add.Run({&aligned, &odd}, {&out});
  CHECK_EQ(Statistics().views_created, after.views_created);  // views are kept
  // A view follows its parent to new memory.
  Model negate(programs::Module("(%x: tensor<64xf32>) -> tensor<64xf32>",
                                "    %0 = stablehlo.negate %x : tensor<64xf32>\n    return %0 : tensor<64xf32>\n"));
  negate.Run({&parent}, {&parent});
  add.Run({&aligned, &aligned}, {&out});
  CHECK(out.Floats() == (Floats{-32, -34, -36, -38}));
}

TEST(many_views_of_one_tensor) {
  Model add(programs::Add("tensor<16xf32>"));
  std::vector<float> values(16 * 100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / 16);
  Tensor parent(values), out(64);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i + 1 < 100; ++i) {
      Tensor a(parent, 64 * i, 64), b(parent, 64 * (i + 1), 64);
      add.Run({&a, &b}, {&out});
      CHECK_EQ(out.Floats()[15], static_cast<float>(2 * i + 1));
    }
  }
}

TEST(more_views_of_one_tensor_in_a_launch_than_are_kept) {
  constexpr size_t kCount = 70;
  std::string signature = "(", body, total = "%p0";
  for (size_t i = 0; i < kCount; ++i) {
    std::string n = std::to_string(i);
    signature += (i == 0 ? "%p" : ", %p") + n + ": tensor<16xf32>";
    if (i == 0) continue;
    body += "    %s" + n + " = stablehlo.add " + total + ", %p" + n + " : tensor<16xf32>\n";
    total = "%s" + n;
  }
  Model sum(programs::Module(signature + ") -> tensor<16xf32>", body + "    return " + total + " : tensor<16xf32>\n"));
  Tensor parent(Filled(16 * kCount, 1)), out(64);
  std::vector<Tensor> slices;
  std::vector<const Tensor*> inputs;
  slices.reserve(kCount);
  for (size_t i = 0; i < kCount; ++i) inputs.push_back(&slices.emplace_back(parent, 64 * i, 64));
  for (int round = 0; round < 3; ++round) {
    sum.Run(inputs, {&out});
    CHECK(out.Floats() == Filled(16, kCount));
  }
}

TEST(in_place_update_keeps_the_memory) {
  Model add(programs::Add("tensor<8xf32>", kAlias));
  Tensor x(Filled(8, 1)), y(Filled(8, 2));
  Tensor view(x, 0, 8);
  uint64_t address = x.Address();
  auto before = Statistics();
  for (int i = 0; i < 3; ++i) add.Run({&x, &y}, {&x});
  CHECK(x.Floats() == Filled(8, 7));
  CHECK(view.Floats() == Filled(2, 7));
  CHECK_EQ(x.Address(), address);
  auto after = Statistics();
  CHECK_EQ(after.donations - before.donations, 3u);
  CHECK_EQ(after.bytes_copied, before.bytes_copied);
}

TEST(an_operand_that_is_also_read_is_not_destroyed) {
  Model add(programs::Add("tensor<8xf32>", kAlias));
  Tensor x(Filled(8, 1)), y(Filled(8, 2)), out(32);
  auto before = Statistics();
  add.Run({&x, &x}, {&x});  // f(donate(a), a)
  CHECK(x.Floats() == Filled(8, 2));
  add.Run({&x, &y}, {&out});  // the output is another tensor
  CHECK(x.Floats() == Filled(8, 2));
  CHECK(out.Floats() == Filled(8, 4));
  Tensor whole(x, 0, 32);
  add.Run({&x, &whole}, {&x});  // the same memory under another handle
  CHECK(x.Floats() == Filled(8, 4));
  CHECK_EQ(Statistics().donations, before.donations);
}

TEST(in_place_on_a_slice_leaves_the_rest) {
  Model add(programs::Add("tensor<4xf32>", kAlias));
  Tensor parent(Filled(32, 1)), y(Floats{1, 2, 3, 4});
  Tensor slice(parent, 64, 16);
  add.Run({&slice, &y}, {&slice});
  Floats values = parent.Floats();
  CHECK_EQ(values[15], 1.0f);
  CHECK_EQ(values[16], 2.0f);
  CHECK_EQ(values[19], 5.0f);
  CHECK_EQ(values[20], 1.0f);
}

TEST(pinned_tensors_are_written_in_place) {
  Model plain(programs::Add("tensor<8xf32>"));
  Model aliased(programs::Add("tensor<8xf32>", kAlias));
  Tensor x(Filled(8, 1)), y(Filled(8, 2)), out(32);
  auto* window = static_cast<float*>(nrt_tensor_get_va(out.handle));
  plain.Run({&x, &y}, {&out});
  CHECK_EQ(window[7], 3.0f);
  aliased.Run({&out, &y}, {&out});
  CHECK_EQ(window[7], 5.0f);
  CHECK(nrt_tensor_get_va(out.handle) == window);
}

TEST(large_outputs_reuse_the_memory_of_their_tensor) {
  Model add(programs::Add(kLargeType));
  Tensor x(Filled(kLarge, 1)), y(Filled(kLarge, 2)), out(kLarge * 4);
  add.Run({&x, &y}, {&out});
  uint64_t address = out.Address();
  auto before = Statistics();
  add.Run({&x, &y}, {&out});
  CHECK_EQ(out.Address(), address);
  CHECK_EQ(Statistics().scratch_reuses - before.scratch_reuses, 1u);
  CHECK(out.Floats() == Filled(kLarge, 3));
  // Not when it is an input: that is still being read.
  add.Run({&out, &y}, {&out});
  CHECK(out.Floats() == Filled(kLarge, 5));
  CHECK(out.Address() != address);
}

TEST(large_outputs_reuse_the_memory_of_freed_tensors) {
  Model add(programs::Add(kLargeType));
  Tensor x(Filled(kLarge, 1));
  uint64_t address;
  {
    Tensor out(kLarge * 4);
    add.Run({&x, &x}, {&out});
    address = out.Address();
  }
  uint64_t used = BytesUsed();
  CHECK_EQ(Statistics().bytes_pooled, kLarge * 4);
  Tensor out(kLarge * 4);
  add.Run({&x, &x}, {&out});
  CHECK_EQ(out.Address(), address);
  CHECK(out.Floats() == Filled(kLarge, 2));
  CHECK_EQ(Statistics().bytes_pooled, 0u);
  CHECK_EQ(BytesUsed(), used);
  // Into a slice: the result is copied, its memory goes back.
  Tensor parent(kLarge * 8);
  Tensor slice(parent, kLarge * 4, kLarge * 4);
  add.Run({&x, &out}, {&slice});
  CHECK(slice.Floats() == Filled(kLarge, 3));
  CHECK_EQ(Statistics().bytes_pooled, kLarge * 4);
}

TEST(recycled_memory_does_not_leak_old_values) {
  Model add(programs::Add(kLargeType));
  Tensor x(Filled(kLarge, 1));
  {
    Tensor out(kLarge * 4);
    add.Run({&x, &x}, {&out});
  }
  Tensor fresh(kLarge * 4), out(kLarge * 4);
  CHECK(fresh.Floats() == Filled(kLarge, 0));
  add.Run({&x, &fresh}, {&out});  // as an operand, an unwritten tensor is zero
  CHECK(out.Floats() == Filled(kLarge, 1));
}

TEST(pooled_memory_is_given_up_when_memory_is_short) {
  nrt_close();
  setenv("NEURONCORE_MEMORY_BYTES", std::to_string(kLarge * 4 * 16).c_str(), 1);
  Init();
  unsetenv("NEURONCORE_MEMORY_BYTES");
  Model add(programs::Add(kLargeType));
  {
    Tensor x(Filled(kLarge, 1)), out(kLarge * 4);
    add.Run({&x, &x}, {&out});
  }
  CHECK(Statistics().bytes_pooled > 0);
  Tensor everything(kLarge * 4 * 16);
  CHECK_EQ(Statistics().bytes_pooled, 0u);
}

TEST(one_tensor_as_two_outputs_takes_the_last) {
  Model two(programs::Module("(%x: " + kLargeType + ") -> (" + kLargeType + ", " + kLargeType + ")",
                             "    %0 = stablehlo.add %x, %x : " + kLargeType + "\n    %1 = stablehlo.add %0, %x : " +
                                 kLargeType + "\n    return %0, %1 : " + kLargeType + ", " + kLargeType + "\n"));
  Tensor x(Filled(kLarge, 1)), out(kLarge * 4), other(kLarge * 4);
  for (int i = 0; i < 3; ++i) {
    two.Run({&x}, {&out, &out});
    CHECK(out.Floats() == Filled(kLarge, 3));
  }
  two.Run({&x}, {&out, &other});
  CHECK(out.Floats() == Filled(kLarge, 2));
  CHECK(other.Floats() == Filled(kLarge, 3));
}

TEST(swapping_tensors_through_one_program) {
  Model swap(
      programs::Module("(%x: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %y: tensor<4xf32> "
                       "{tf.aliasing_output = 0 : i32}) -> (tensor<4xf32>, tensor<4xf32>)",
                       "    return %y, %x : tensor<4xf32>, tensor<4xf32>\n"));
  Tensor x(Floats{1, 2, 3, 4}), y(Floats{5, 6, 7, 8});
  swap.Run({&x, &y}, {&x, &y});
  CHECK(x.Floats() == (Floats{5, 6, 7, 8}));
  CHECK(y.Floats() == (Floats{1, 2, 3, 4}));
}

TEST(tensors_larger_than_the_operand) {
  Model add(programs::Add("tensor<4xf32>"));
  Tensor x(Floats{1, 2, 3, 4, 99, 99}), out(512);
  add.Run({&x, &x}, {&out});
  Tensor head(out, 0, 16);
  CHECK(head.Floats() == (Floats{2, 4, 6, 8}));
  CHECK_EQ(out.Floats().size(), 128u);  // bytes beyond are readable, whatever they are
  out.Write(Floats{7}, 508);
  CHECK(head.Floats() == (Floats{2, 4, 6, 8}));
  add.Run({&out, &x}, {&x});
  CHECK_EQ(Tensor(x, 0, 16).Floats()[3], 12.0f);
}

TEST(wrong_launches_are_refused) {
  Model add(programs::Add("tensor<4xf32>"));
  Tensor x(Floats{1, 2, 3, 4}), out(16), small(12), elsewhere(16, 1);
  FAILS(add.TryRun({&x}, {&out}), NRT_EXEC_BAD_INPUT);
  CHECK_CONTAINS(neuroncore_last_error(), "input1");
  FAILS(add.TryRun({&x, &small}, {&out}), NRT_EXEC_BAD_INPUT);
  CHECK_CONTAINS(neuroncore_last_error(), "12");
  FAILS(add.TryRun({&x, &x}, {}), NRT_INVALID);
  FAILS(add.TryRun({&x, &x}, {&small}), NRT_INVALID);
  CHECK_CONTAINS(neuroncore_last_error(), "tensor<4xf32>");
  FAILS(add.TryRun({&x, &elsewhere}, {&out}), NRT_INVALID);
  FAILS(add.TryRun({&x, &x}, {&elsewhere}), NRT_INVALID);
  TensorSet in("input", {&x, &x}), outs("output", {&out});
  {
    Tensor freed(16);
    in.Add("input1", freed);
  }
  FAILS(nrt_execute(add.handle, in.handle, outs.handle), NRT_EXEC_BAD_INPUT);
  Tensor reused(16);  // possibly at the same address: still not the tensor that was added
  FAILS(nrt_execute(add.handle, in.handle, outs.handle), NRT_EXEC_BAD_INPUT);
  FAILS(nrt_execute(nullptr, in.handle, outs.handle), NRT_INVALID_HANDLE);
  FAILS(nrt_execute(add.handle, nullptr, outs.handle), NRT_INVALID_HANDLE);
  in.Add("input1", x);
  OK(nrt_execute(add.handle, in.handle, outs.handle));
  CHECK(out.Floats() == (Floats{2, 4, 6, 8}));
  nrt_model_t* unloaded = add.handle;
  OK(nrt_unload(add.handle));
  add.handle = nullptr;
  FAILS(nrt_execute(unloaded, in.handle, outs.handle), NRT_INVALID_HANDLE);
  FAILS(nrt_unload(unloaded), NRT_INVALID_HANDLE);
}

TEST(replaced_tensors_in_a_set) {
  Model add(programs::Add("tensor<4xf32>"));
  Tensor x(Filled(4, 1)), y(Filled(4, 10)), a(16), b(16);
  TensorSet in("input", {&x, &x}), out("output", {&a});
  OK(nrt_execute(add.handle, in.handle, out.handle));
  in.Add("input1", y);
  out.Add("output0", b);
  OK(nrt_execute(add.handle, in.handle, out.handle));
  CHECK(a.Floats() == Filled(4, 2));
  CHECK(b.Floats() == Filled(4, 11));
  OK(nrt_execute_repeat(add.handle, in.handle, out.handle, 3));
}

TEST(two_cores) {
  Model first(programs::Add("tensor<4xf32>"), 0), second(programs::Add("tensor<4xf32>"), 1);
  Tensor x(Filled(4, 1)), out(16), y(16, 1), out1(16, 1);
  y.Write(Filled(4, 3));
  uint64_t executions = Statistics(0).executions;
  second.Run({&y, &y}, {&out1});
  CHECK_EQ(Statistics(0).executions, executions);
  first.Run({&x, &x}, {&out});
  CHECK(out.Floats() == Filled(4, 2));
  CHECK(out1.Floats() == Filled(4, 6));
}

TEST(model_tensor_info) {
  Model norm(programs::LayerNorm(2, 3));
  nrt_tensor_info_array_t* info;
  OK(nrt_get_model_tensor_info(norm.handle, &info));
  CHECK_EQ(info->tensor_count, 4u);
  CHECK_EQ(std::string(info->tensor_array[0].name), "input0");
  CHECK_EQ(info->tensor_array[0].ndim, 2u);
  CHECK_EQ(info->tensor_array[0].shape[1], 3u);
  CHECK_EQ(info->tensor_array[0].size, 24u);
  CHECK_EQ(info->tensor_array[0].dtype, NRT_DTYPE_FLOAT32);
  CHECK_EQ(std::string(info->tensor_array[3].name), "output0");
  CHECK_EQ(info->tensor_array[3].usage, NRT_TENSOR_USAGE_OUTPUT);
  OK(nrt_free_model_tensor_info(info));
  Model large(programs::Add(kLargeType));
  OK(nrt_get_model_tensor_info(large.handle, &info));
  CHECK_EQ(info->tensor_count, 3u);  // scratch parameters are nobody's business
  OK(nrt_free_model_tensor_info(info));
  uint32_t count = 0;
  OK(nrt_get_model_instance_count(large.handle, &count));
  CHECK_EQ(count, 1u);
  nrt_model_info_t model_info;
  OK(nrt_get_model_info(large.handle, &model_info, sizeof(model_info), nullptr));
  CHECK_EQ(model_info.vnc, 0u);
}

TEST(graph_level_gives_the_same_result) {
  for (int level : {0, 1}) {
    Model softmax(programs::Softmax(4, 8), 0, level);
    Tensor x(Filled(32, 3)), out(128);
    softmax.Run({&x}, {&out});
    CHECK(out.Floats() == Filled(32, 0.125f));
  }
}

// (f32[4] a, b, c, d; i64 e, f, g, h; large i; f32[4] j) -> a + b * c + d + e + f + g + h + i[:4] + j, written to j
std::string ManyParameters(const std::string& large) {
  const std::string v = "tensor<4xf32>", n = "tensor<i64>";
  std::string list, body;
  for (const char* name : {"a", "b", "c", "d"}) list += std::string("%") + name + ": " + v + ", ";
  for (const char* name : {"e", "f", "g", "h"}) {
    list += std::string("%") + name + ": " + n + ", ";
    body += std::string("    %") + name + "0 = stablehlo.convert %" + name + " : (" + n + ") -> tensor<f32>\n    %" +
            name + "1 = stablehlo.broadcast_in_dim %" + name + "0, dims = [] : (tensor<f32>) -> " + v + "\n";
  }
  list += "%i: " + large + ", %j: " + v + kAlias;
  body += "    %bc = stablehlo.multiply %b, %c : " + v + "\n    %i1 = stablehlo.slice %i [0:4] : (" + large + ") -> " +
          v + "\n    %s0 = stablehlo.add %a, %bc : " + v + "\n";
  int sum = 0;
  for (const char* name : {"d", "e1", "f1", "g1", "h1", "i1", "j"}) {
    const std::string before = std::to_string(sum), after = std::to_string(++sum);
    body += "    %s" + after + " = stablehlo.add %s" + before + ", %" + name + " : " + v + "\n";
  }
  return programs::Module("(" + list + ") -> " + v, body + "    return %s7 : " + v + "\n");
}

TEST(many_small_operands) {
  Model model(ManyParameters(kLargeType));
  Tensor parent(Floats{0, 1, 2, 3, 4, 5, 6, 7});
  Tensor a(Filled(4, 1)), b(parent, 4, 16), never_written(16), d(Filled(4, 1000)), j(Filled(4, 0.5));
  Tensor large(Filled(kLarge, 10000));
  std::vector<Tensor> numbers;
  for (int64_t n = 0; n < 4; ++n) numbers.emplace_back(std::vector<int64_t>{n});
  const std::vector<const Tensor*> inputs{&a,          &b,          &a,          &d,     &numbers[0],
                                          &numbers[1], &numbers[2], &numbers[3], &large, &j};
  auto before = Statistics();
  model.Run(inputs, {&j});
  CHECK(j.Floats() == (Floats{11008.5, 11009.5, 11010.5, 11011.5}));  // 1 + [1, 2, 3, 4] * 1 + 1000 + 6 + 10000 + 0.5
  CHECK_EQ(Statistics().donations - before.donations, 1u);
  // The copies of one launch are not those of the next.
  numbers[3].Write(std::vector<int64_t>{-3});
  a.Write(Filled(4, 0));
  model.Run(inputs, {&j});
  CHECK(j.Floats() == (Floats{22008.5, 22009.5, 22010.5, 22011.5}));  // + 1000 + 0 + 10000
  // Operands that are one tensor, and one that was never written.
  model.Run({&never_written, &a, &a, &never_written, &numbers[0], &numbers[0], &numbers[0], &numbers[0], &large, &j},
            {&j});
  CHECK(j.Floats() == (Floats{32008.5, 32009.5, 32010.5, 32011.5}));
  Tensor small(8);
  FAILS(model.TryRun({&small, &a, &a, &d, &numbers[0], &numbers[0], &numbers[0], &numbers[0], &large, &j}, {&j}),
        NRT_EXEC_BAD_INPUT);
}

int main() { return RunOnDevice(); }
