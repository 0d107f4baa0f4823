// SPDX-License-Identifier: Apache-2.0
//
// The transport hook, with ranks that are threads of this process.

#include <condition_variable>
#include <mutex>
#include <thread>

#include "device.h"

namespace {

// Ranks meet here: each leaves a pointer, the last one lets all go on.
struct Meeting {
  std::mutex mutex;
  std::condition_variable all_here;
  std::vector<const void*> offered;
  int waiting = 0;
  int round = 0;

  void Meet(int rank, int size, const void* pointer, const std::function<void(const std::vector<const void*>&)>& use) {
    for (int phase = 0; phase < 2; ++phase) {  // offer, then leave together: nobody's memory goes while it is read
      std::unique_lock lock(mutex);
      offered.resize(static_cast<size_t>(size));
      if (phase == 0) offered[static_cast<size_t>(rank)] = pointer;
      int mine = round;
      if (++waiting == size) {
        waiting = 0;
        ++round;
        all_here.notify_all();
      } else {
        all_here.wait(lock, [&] { return round != mine; });
      }
      if (phase == 0) use(offered);
    }
  }
};

Meeting meeting;
thread_local int this_rank = 0;
constexpr int kRanks = 2;

int DescribeGroup(void*, neuroncore_group_t* group, char* error, size_t error_size) {
  if (group->id == 9) {
    snprintf(error, error_size, "no group nine");
    return 1;
  }
  group->rank = this_rank;
  group->size = kRanks;
  return 0;
}

int AllReduce(void*, const neuroncore_group_t* group, neuroncore_reduce_t op, int32_t type, const void* input,
              void* output, size_t count, char* error, size_t error_size) {
  if (type != NEURONCORE_TYPE_F32 || op != NEURONCORE_REDUCE_SUM) {
    snprintf(error, error_size, "only sums of f32");
    return 1;
  }
  std::vector<float> total(count);
  meeting.Meet(group->rank, group->size, input, [&](const std::vector<const void*>& all) {
    for (const void* one : all) {
      for (size_t i = 0; i < count; ++i) total[i] += static_cast<const float*>(one)[i];
    }
  });
  memcpy(output, total.data(), count * 4);
  return 0;
}

int AllGather(void*, const neuroncore_group_t* group, const void* input, void* output, size_t bytes, char*, size_t) {
  meeting.Meet(group->rank, group->size, input, [&](const std::vector<const void*>& all) {
    for (size_t i = 0; i < all.size(); ++i) memcpy(static_cast<char*>(output) + i * bytes, all[i], bytes);
  });
  return 0;
}

int AllToAll(void*, const neuroncore_group_t* group, const void* input, const size_t* input_bytes, void* output,
             const size_t* output_bytes, char* error, size_t error_size) {
  struct Offer {
    const void* input;
    const size_t* bytes;
  } offer = {input, input_bytes};
  bool good = true;
  meeting.Meet(group->rank, group->size, &offer, [&](const std::vector<const void*>& all) {
    char* target = static_cast<char*>(output);
    for (size_t r = 0; r < all.size(); ++r) {
      const Offer& other = *static_cast<const Offer*>(all[r]);
      const char* source = static_cast<const char*>(other.input);
      for (int i = 0; i < group->rank; ++i) source += other.bytes[i];
      good = good && other.bytes[group->rank] == output_bytes[r];
      if (good) memcpy(target, source, output_bytes[r]);
      target += output_bytes[r];
    }
  });
  if (!good) snprintf(error, error_size, "parts of different sizes meet");
  return good ? 0 : 1;
}

int Barrier(void*, const neuroncore_group_t* group, char*, size_t) {
  meeting.Meet(group->rank, group->size, nullptr, [](const std::vector<const void*>&) {});
  return 0;
}

struct Transport {
  Transport() {
    neuroncore_collectives_t table = {};
    table.struct_size = sizeof(table);
    table.describe_group = DescribeGroup;
    table.all_reduce = AllReduce;
    table.all_gather = AllGather;
    table.all_to_all = AllToAll;
    table.barrier = Barrier;
    OK(neuroncore_set_collectives(&table));
  }
  ~Transport() { neuroncore_set_collectives(nullptr); }
};

void OnRanks(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<int> good(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      this_rank = rank;
      try {
        body(rank);
        good[static_cast<size_t>(rank)] = 1;
      } catch (const check::Failure&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int ok : good) CHECK_EQ(ok, 1);
}

std::string Call(const std::string& kernel, const std::string& config, const std::string& from, const std::string& to) {
  return programs::Module("(%x: " + from + ") -> " + to,
                          "    %0 = stablehlo.custom_call @neuroncore." + kernel +
                              "(%x) {api_version = 4 : i32, backend_config = {config = \"" + config + "\"}} : (" +
                              from + ") -> " + to + "\n    return %0 : " + to + "\n");
}

}  // namespace

TEST(alone_without_a_transport) {
  OK(nrt_build_global_comm(0, 0, 1));
  OK(nrt_barrier(0, 0, 1));
  float in[2] = {1, 2}, out[2] = {};
  OK(nrt_all_gather(0, 0, 1, 8, in, out));
  CHECK_EQ(out[1], 2.0f);
  Model reduce(Call("all_reduce", "group=0;op=sum", "tensor<2xf32>", "tensor<2xf32>"));
  Tensor x(std::vector<float>{1, 2}), y(8);
  reduce.Run({&x}, {&y});
  CHECK(y.Floats() == (std::vector<float>{1, 2}));
}

TEST(several_without_a_transport_fail_clearly) {
  FAILS(nrt_barrier(0, 0, 2), NRT_FAILURE);
  CHECK_CONTAINS(neuroncore_last_error(), "neuroncore_set_collectives");
  FAILS(nrt_build_global_comm(0, 1, 2), NRT_FAILURE);
  float value = 0, out[2];
  FAILS(nrt_all_gather(0, 0, 2, 4, &value, out), NRT_FAILURE);
  FAILS(nrt_barrier(0, 2, 2), NRT_INVALID);
  FAILS(nrt_barrier(77, 0, 1), NRT_INVALID);
}

TEST(functions_over_two_ranks) {
  Transport transport;
  OnRanks([](int rank) {
    uint32_t r = static_cast<uint32_t>(rank);
    OK(nrt_build_global_comm(rank, r, 2));
    OK(nrt_barrier(rank, r, 2));
    int value = 10 + rank, all[2] = {};
    OK(nrt_all_gather(rank, r, 2, sizeof(value), &value, all));
    CHECK_EQ(all[0], 10);
    CHECK_EQ(all[1], 11);
  });
}

TEST(programs_over_two_ranks) {
  Transport transport;
  std::string program = Call("all_reduce", "group=0;op=sum", "tensor<4xf32>", "tensor<4xf32>");
  std::string gather = Call("all_gather", "group=3", "tensor<2xf32>", "tensor<4xf32>");
  Model reduce0(program, 0), reduce1(program, 1), gather0(gather, 0), gather1(gather, 1);
  // The transport of this test knows its rank by the thread, so it needs kernels called in the thread of nrt_execute:
  // true for plugins with a synchronous client only.
  if (std::string(neuroncore_description()).find("PJRT API 0.106") != std::string::npos) return;
  OnRanks([&](int rank) {
    Tensor x(16, rank), y(16, rank), half(8, rank);
    x.Write(std::vector<float>(4, static_cast<float>(rank + 1)));
    half.Write(std::vector<float>(2, static_cast<float>(rank)));
    (rank == 0 ? reduce0 : reduce1).Run({&x}, {&y});
    CHECK(y.Floats() == std::vector<float>(4, 3));
    (rank == 0 ? gather0 : gather1).Run({&half}, {&y});
    CHECK(y.Floats() == (std::vector<float>{0, 0, 1, 1}));
  });
}

TEST(parts_of_different_sizes) {
  Transport transport;
  // Rank 0 keeps one element and sends two; rank 1 sends none, and one to itself.
  Model from0(Call("all_to_all", "group=0;send=1,2;receive=1,0", "tensor<3xf32>", "tensor<1xf32>"), 0);
  Model from1(Call("all_to_all", "group=0;send=0,1;receive=2,1", "tensor<1xf32>", "tensor<3xf32>"), 1);
  Model even0(Call("all_to_all", "group=0", "tensor<2xf32>", "tensor<2xf32>"), 0);
  Model even1(Call("all_to_all", "group=0", "tensor<2xf32>", "tensor<2xf32>"), 1);
  if (std::string(neuroncore_description()).find("PJRT API 0.106") != std::string::npos) return;
  OnRanks([&](int rank) {
    Tensor x(rank == 0 ? 12 : 4, rank), y(rank == 0 ? 4 : 12, rank), two(8, rank), other(8, rank);
    x.Write(rank == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>{4});
    two.Write(std::vector<float>{static_cast<float>(rank), static_cast<float>(rank + 10)});
    (rank == 0 ? from0 : from1).Run({&x}, {&y});
    CHECK(y.Floats() == (rank == 0 ? std::vector<float>{1} : std::vector<float>{2, 3, 4}));
    (rank == 0 ? even0 : even1).Run({&two}, {&other});
    CHECK(other.Floats() == (rank == 0 ? std::vector<float>{0, 1} : std::vector<float>{10, 11}));
  });
}

TEST(what_a_transport_refuses_is_reported) {
  Transport transport;
  Tensor x(std::vector<float>{1, 2}), y(8), z(64);
  Model maximum(Call("all_reduce", "group=0;op=max", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(maximum.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
  CHECK_CONTAINS(neuroncore_last_error(), "only sums of f32");
  Model nine(Call("all_reduce", "group=9;op=sum", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(nine.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
  CHECK_CONTAINS(neuroncore_last_error(), "no group nine");
  Model unsized(Call("all_gather", "group=0", "tensor<2xf32>", "tensor<10xf32>"));
  FAILS(unsized.TryRun({&x}, {&z}), NRT_EXEC_COMPLETED_WITH_ERR);
  Model missing(Call("broadcast", "group=0;root=0", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(missing.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
  CHECK_CONTAINS(neuroncore_last_error(), "broadcast");
  Model short_of_one(Call("all_to_all", "group=0;send=1,0;receive=1,1", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(short_of_one.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
  CHECK_CONTAINS(neuroncore_last_error(), "send=1,0 does not cut 2 elements");
  Model three(Call("all_to_all", "group=0;send=1,1,0;receive=1,1", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(three.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
  Model unnamed(Call("all_reduce", "group=0", "tensor<2xf32>", "tensor<2xf32>"));
  FAILS(unnamed.TryRun({&x}, {&y}), NRT_EXEC_COMPLETED_WITH_ERR);
}

int main() { return RunOnDevice(); }
