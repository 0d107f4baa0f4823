// SPDX-License-Identifier: Apache-2.0
//
// Several threads: executing on one core and on two, compiling, and allocating, at once.

#include <atomic>
#include <thread>

#include "device.h"

namespace {

// Runs `body` in `count` threads and fails if one of them failed.
void InThreads(int count, const std::function<void(int)>& body) {
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
        ++good;
      } catch (const check::Failure&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(good.load(), count);
}

}  // namespace

TEST(one_model_from_many_threads) {
  Model add(programs::Add("tensor<16xf32>"));
  uint64_t before = Statistics().executions;
  InThreads(4, [&](int i) {
    Tensor x(std::vector<float>(16, static_cast<float>(i))), y(std::vector<float>(16, 1));
    for (int round = 0; round < 200; ++round) {
      Tensor out(64);
      add.Run({&x, &y}, {&out});
      CHECK(out.Floats() == std::vector<float>(16, static_cast<float>(i + 1)));
    }
  });
  CHECK_EQ(Statistics().executions - before, 800u);
}

TEST(two_cores_at_once) {
  std::string program = programs::Add("tensor<524288xf32>", " {tf.aliasing_output = 0 : i32}");
  Model first(program, 0), second(program, 1);
  InThreads(2, [&](int i) {
    Tensor x(524288 * 4, i), y(524288 * 4, i);
    y.Write(std::vector<float>(524288, 1));
    for (int round = 0; round < 20; ++round) (i == 0 ? first : second).Run({&x, &y}, {&x});
    CHECK(x.Floats() == std::vector<float>(524288, 20));
  });
}

TEST(compiling_while_executing) {
  Model add(programs::Add("tensor<16xf32>"));
  std::atomic<bool> compiled{false};
  InThreads(3, [&](int i) {
    if (i < 2) {
      for (int n = 1; n < 4; ++n) Model other(programs::Add("tensor<" + std::to_string(10 * n + i) + "xf32>"));
      compiled = true;
      return;
    }
    Tensor x(std::vector<float>(16, 1));
    while (!compiled) {
      Tensor out(64);
      add.Run({&x, &x}, {&out});
      CHECK_EQ(out.Floats()[0], 2.0f);
    }
  });
}

TEST(reading_and_slicing_while_a_result_is_adopted) {
  Model add(programs::Add("tensor<524288xf32>"));
  Tensor x(std::vector<float>(524288, 1)), out(524288 * 4);
  std::atomic<bool> done{false};
  InThreads(3, [&](int i) {
    if (i == 0) {
      for (int round = 0; round < 50; ++round) add.Run({&x, &x}, {&out});
      done = true;
      return;
    }
    while (!done) {
      Tensor slice(out, 4096, 64);
      float value = slice.Floats()[0];
      CHECK(value == 0.0f || value == 2.0f);
    }
  });
}

TEST(errors_belong_to_their_thread) {
  FAILS(nrt_unload(nullptr), NRT_INVALID_HANDLE);
  std::string here = neuroncore_last_error();
  InThreads(1, [&](int) {
    CHECK_EQ(std::string(neuroncore_last_error()), "");
    FAILS(nrt_tensor_read(nullptr, nullptr, 0, 0), NRT_INVALID_HANDLE);
  });
  CHECK_EQ(here, neuroncore_last_error());
}

int main() { return RunOnDevice(); }
