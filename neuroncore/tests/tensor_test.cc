// SPDX-License-Identifier: Apache-2.0
//
// Tensors, slices and tensor sets without any program.

#include <stdlib.h>

#include "device.h"

using Floats = std::vector<float>;

TEST(unwritten_tensors_read_as_zero) {
  Tensor tensor(16);
  CHECK(tensor.Floats() == (Floats{0, 0, 0, 0}));
  tensor.Write(Floats{5}, 8);
  CHECK(tensor.Floats() == (Floats{0, 0, 5, 0}));
  Tensor other(16);
  other.Write(Floats{7});  // the memory is as long as what was written
  CHECK(other.Floats() == (Floats{7, 0, 0, 0}));
  other.Write(Floats{9}, 12);
  CHECK(other.Floats() == (Floats{7, 0, 0, 9}));
}

TEST(allocation_costs_memory_only_in_the_books) {
  uint64_t before = BytesUsed();
  {
    Tensor tensor(size_t{1} << 30);
    CHECK_EQ(BytesUsed() - before, uint64_t{1} << 30);
    CHECK_EQ(tensor.Address(), 0u);
  }
  CHECK_EQ(BytesUsed(), before);
}

TEST(ranges_are_checked) {
  Tensor tensor(16);
  float values[8] = {};
  FAILS(nrt_tensor_read(tensor.handle, values, 0, 17), NRT_INVALID);
  FAILS(nrt_tensor_read(tensor.handle, values, 17, 0), NRT_INVALID);
  FAILS(nrt_tensor_write(tensor.handle, values, 12, 8), NRT_INVALID);
  FAILS(nrt_tensor_write(tensor.handle, values, SIZE_MAX, 8), NRT_INVALID);
  FAILS(nrt_tensor_write(tensor.handle, nullptr, 0, 8), NRT_INVALID);
  FAILS(nrt_tensor_memset(tensor.handle, 1, 0, 16), NRT_INVALID);
  nrt_tensor_t* slice;
  FAILS(nrt_tensor_allocate_slice(tensor.handle, 8, 16, nullptr, &slice), NRT_INVALID);
}

TEST(bad_handles_are_noticed) {
  FAILS(nrt_tensor_read(nullptr, nullptr, 0, 0), NRT_INVALID_HANDLE);
  nrt_tensor_t* freed;
  {
    Tensor tensor(16);
    freed = tensor.handle;
  }
  float value = 0;
  FAILS(nrt_tensor_read(freed, &value, 0, 4), NRT_INVALID_HANDLE);
  FAILS(nrt_tensor_write(freed, &value, 0, 4), NRT_INVALID_HANDLE);
  CHECK_EQ(nrt_tensor_get_size(freed), 0u);
  CHECK(nrt_tensor_get_va(freed) == nullptr);
  nrt_tensor_free(&freed);  // a second free is harmless
  CHECK(freed == nullptr);
  nrt_tensor_free(nullptr);
  nrt_tensor_t* tensor;
  FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_VIRTUAL, 0, 4, nullptr, &tensor), NRT_INVALID);
  FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 99, 4, nullptr, &tensor), NRT_INVALID);
  FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 4, nullptr, nullptr), NRT_INVALID);
  FAILS(nrt_tensor_allocate_empty("x", &tensor), NRT_INVALID);
  FAILS(nrt_tensor_check_output_completion(nullptr, 0, 1), NRT_INVALID);
}

TEST(slices_share_and_outlive_their_parent) {
  uint64_t before = BytesUsed();
  auto* parent = new Tensor(Floats{0, 1, 2, 3, 4, 5, 6, 7});
  Tensor slice(*parent, 8, 16);
  Tensor slice_of_slice(slice, 4, 8);
  CHECK(slice.Floats() == (Floats{2, 3, 4, 5}));
  CHECK(slice_of_slice.Floats() == (Floats{3, 4}));
  slice_of_slice.Write(Floats{30});
  CHECK_EQ(parent->Floats()[3], 30.0f);
  delete parent;
  CHECK(slice.Floats() == (Floats{2, 30, 4, 5}));
  CHECK_EQ(BytesUsed() - before, 32u);  // the storage lives as long as a slice
}

TEST(a_slice_of_an_unwritten_tensor) {
  Tensor parent(64);
  Tensor slice(parent, 16, 16);
  CHECK(slice.Floats() == (Floats{0, 0, 0, 0}));
  slice.Write(Floats{1, 2, 3, 4});
  Floats values = parent.Floats();
  CHECK_EQ(values[3], 0.0f);
  CHECK_EQ(values[4], 1.0f);
  CHECK_EQ(values[7], 4.0f);
  CHECK_EQ(values[8], 0.0f);
}

TEST(copies) {
  Tensor a(Floats{0, 1, 2, 3, 4, 5, 6, 7});
  Tensor b(32);
  OK(nrt_tensor_copy(a.handle, 8, b.handle, 16, 12));
  CHECK(b.Floats() == (Floats{0, 0, 0, 0, 2, 3, 4, 0}));
  OK(nrt_tensor_copy(a.handle, 0, a.handle, 4, 28));  // overlapping
  CHECK(a.Floats() == (Floats{0, 0, 1, 2, 3, 4, 5, 6}));
  Tensor empty(32);
  OK(nrt_tensor_copy(empty.handle, 0, b.handle, 0, 32));
  CHECK(b.Floats() == Floats(8));
  OK(nrt_tensor_memset(b.handle, 4, 0x3f, 4));
  CHECK(b.Floats()[1] > 0.7f);
  Tensor elsewhere(32, 1);
  FAILS(nrt_tensor_copy(a.handle, 0, elsewhere.handle, 0, 32), NRT_INVALID);
  CHECK_CONTAINS(neuroncore_last_error(), "cores 0 and 1");
}

TEST(batches) {
  Tensor a(16), b(16);
  float one = 1, two = 2, got[2] = {};
  nrt_tensor_batch_op_t write_a[] = {{0, 4, &one}, {8, 4, &two}}, write_b[] = {{4, 4, &two}};
  nrt_tensor_batch_t writes[] = {{a.handle, write_a, 2}, {b.handle, write_b, 1}};
  OK(nrt_tensor_write_batch(writes, 2, false));
  CHECK(a.Floats() == (Floats{1, 0, 2, 0}));
  nrt_tensor_batch_op_t read_b[] = {{4, 4, &got[0]}, {0, 4, &got[1]}};
  nrt_tensor_batch_t reads[] = {{b.handle, read_b, 2}};
  OK(nrt_tensor_read_batch(reads, 1, true));
  CHECK_EQ(got[0], 2.0f);
  CHECK_EQ(got[1], 0.0f);
}

TEST(get_va_is_a_stable_window) {
  Tensor tensor(32);
  tensor.Write(Floats{1, 2});
  Tensor slice(tensor, 8, 8);
  auto* window = static_cast<float*>(nrt_tensor_get_va(tensor.handle));
  CHECK(window != nullptr);
  CHECK_EQ(window[1], 2.0f);
  CHECK_EQ(window[7], 0.0f);
  CHECK(nrt_tensor_get_va(slice.handle) == window + 2);
  window[2] = 5;
  CHECK_EQ(slice.Floats()[0], 5.0f);
  tensor.Write(Floats{9, 9, 9, 9, 9, 9, 9, 9});
  CHECK(nrt_tensor_get_va(tensor.handle) == window);
  CHECK_EQ(window[7], 9.0f);
}

TEST(zero_size_tensors) {
  Tensor tensor(size_t{0});
  CHECK_EQ(nrt_tensor_get_size(tensor.handle), 0u);
  OK(nrt_tensor_read(tensor.handle, nullptr, 0, 0));
  OK(nrt_tensor_write(tensor.handle, nullptr, 0, 0));
  Tensor slice(tensor, 0, 0);
}

TEST(memory_runs_out_and_recovers) {
  nrt_close();
  setenv("NEURONCORE_MEMORY_BYTES", "1000", 1);
  Init();
  unsetenv("NEURONCORE_MEMORY_BYTES");
  {
    Tensor most(900);
    nrt_tensor_t* more = nullptr;
    FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, 101, nullptr, &more), NRT_RESOURCE);
    CHECK_CONTAINS(neuroncore_last_error(), "900 of 1000");
    FAILS(nrt_tensor_allocate(NRT_TENSOR_PLACEMENT_DEVICE, 0, SIZE_MAX, nullptr, &more), NRT_RESOURCE);
    CHECK(more == nullptr);
    Tensor rest(100);
    Tensor other_core(1000, 1);  // every core has its own memory
    Tensor slice(most, 0, 900);  // costs nothing
    CHECK_EQ(BytesUsed(), 1000u);
  }
  Tensor all(1000);
  CHECK_EQ(Statistics().bytes_allocated_peak, 1000u);
}

TEST(lent_memory_is_the_tensor_and_outlives_it) {
  auto* tensor = new Tensor(64);
  const char text[] = "device";
  OK(nrt_tensor_write(tensor->handle, text, 8, sizeof(text)));
  void* data = nullptr;
  void* loan = nullptr;
  OK(neuroncore_borrow(tensor->handle, 8, sizeof(text), false, &data, &loan));
  CHECK_EQ(memcmp(data, text, sizeof(text)), 0);
  memcpy(data, "DEVICE", sizeof(text));
  char read[sizeof(text)];
  OK(nrt_tensor_read(tensor->handle, read, 8, sizeof(text)));
  CHECK_EQ(memcmp(read, "DEVICE", sizeof(text)), 0);
  delete tensor;
  CHECK_EQ(memcmp(data, "DEVICE", sizeof(text)), 0);
  neuroncore_give_back(loan);

  Tensor other(16);
  OK(neuroncore_borrow(other.handle, 0, 0, true, &data, &loan));
  CHECK(data == nullptr && loan == nullptr);
  neuroncore_give_back(loan);
  FAILS(neuroncore_borrow(other.handle, 8, 9, false, &data, &loan), NRT_INVALID);
  FAILS(neuroncore_borrow(nullptr, 0, 1, false, &data, &loan), NRT_INVALID_HANDLE);
}

TEST(sets_replace_and_forget) {
  Tensor a(4), b(4);
  TensorSet set("input", {&a});
  set.Add("weights", a);
  set.Add("input01", b);  // not the same name as input1
  nrt_tensor_t* found = nullptr;
  OK(nrt_get_tensor_from_tensor_set(set.handle, "input0", &found));
  CHECK(found == a.handle);
  set.Add("input0", b);
  OK(nrt_get_tensor_from_tensor_set(set.handle, "input0", &found));
  CHECK(found == b.handle);
  OK(nrt_get_tensor_from_tensor_set(set.handle, "weights", &found));
  CHECK(found == a.handle);
  found = nullptr;
  for (const char* name : {"input1", "input7", "output0", "nothing", "input", "input65536"}) {
    FAILS(nrt_get_tensor_from_tensor_set(set.handle, name, &found), NRT_FAILURE);
    CHECK(found == nullptr);
  }
  {
    Tensor gone(4);
    set.Add("output3", gone);
  }
  FAILS(nrt_get_tensor_from_tensor_set(set.handle, "output3", &found), NRT_FAILURE);
  nrt_tensor_t* const both[] = {b.handle, a.handle};
  for (const bool outputs : {false, true}) {
    OK(neuroncore_fill_tensor_set(set.handle, outputs, both, 2));
    OK(nrt_get_tensor_from_tensor_set(set.handle, outputs ? "output0" : "input0", &found));
    CHECK(found == b.handle);
    OK(nrt_get_tensor_from_tensor_set(set.handle, outputs ? "output1" : "input1", &found));
    CHECK(found == a.handle);
  }
  nrt_tensor_t* const none[] = {a.handle, nullptr};
  FAILS(neuroncore_fill_tensor_set(set.handle, false, none, 2), NRT_INVALID_HANDLE);
  FAILS(neuroncore_fill_tensor_set(set.handle, false, nullptr, 1), NRT_INVALID);
  FAILS(neuroncore_fill_tensor_set(nullptr, false, both, 2), NRT_INVALID_HANDLE);
  FAILS(nrt_add_tensor_to_tensor_set(set.handle, "", a.handle), NRT_INVALID);
  FAILS(nrt_add_tensor_to_tensor_set(set.handle, "x", nullptr), NRT_INVALID_HANDLE);
  FAILS(nrt_add_tensor_to_tensor_set(nullptr, "x", a.handle), NRT_INVALID_HANDLE);
  nrt_tensor_set_t* destroyed = set.handle;
  nrt_destroy_tensor_set(&set.handle);
  CHECK(set.handle == nullptr);
  FAILS(nrt_add_tensor_to_tensor_set(destroyed, "x", a.handle), NRT_INVALID_HANDLE);
  FAILS(neuroncore_fill_tensor_set(destroyed, false, both, 2), NRT_INVALID_HANDLE);
  nrt_destroy_tensor_set(&destroyed);
}

int main() { return RunOnDevice(); }
