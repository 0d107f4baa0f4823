// SPDX-License-Identifier: Apache-2.0
//
// A small test runner: TEST(name) { CHECK(...); }. A failing check ends its test, the others still run.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Failure : std::exception {};

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

struct Register {
  Register(const char* name, void (*body)()) { Cases().push_back({name, body}); }
};

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  throw Failure();
}

template <class A, class B>
void Equal(const char* file, int line, const char* text, const A& actual, const B& expected) {
  if (actual == expected) return;
  std::ostringstream what;
  what << text << ": got " << actual << ", expected " << expected;
  Fail(file, line, what.str());
}

inline int RunAll(const std::function<void()>& before_each = [] {}, const std::function<void()>& after_each = [] {}) {
  int failed = 0;
  for (const Case& test : Cases()) {
    try {
      before_each();
      test.body();
      after_each();
      printf("ok   %s\n", test.name);
    } catch (const Failure&) {
      printf("FAIL %s\n", test.name);
      ++failed;
    }
  }
  printf("%zu tests, %d failed\n", Cases().size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                     \
  static void name();                                  \
  static check::Register register_##name(#name, name); \
  static void name()
#define CHECK(condition) \
  if (!(condition)) check::Fail(__FILE__, __LINE__, #condition)
#define CHECK_EQ(actual, expected) check::Equal(__FILE__, __LINE__, #actual, actual, expected)
#define CHECK_CONTAINS(text, part)                       \
  if (std::string(text).find(part) == std::string::npos) \
  check::Fail(__FILE__, __LINE__, "\"" + std::string(text) + "\" lacks \"" + part + "\"")
