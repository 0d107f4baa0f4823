// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <cstdio>

namespace neuroncore {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  size_t start = text.find_first_not_of(kSpace);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kSpace) - start + 1);
}

}  // namespace

bool IsJsonObject(std::string_view text) {
  text = Trimmed(text);
  if (text.empty() || text.front() != '{' || text.back() != '}') return false;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0 && i + 1 != text.size()) return false;
    }
  }
  return depth == 0 && !quoted;
}

void JsonWriter::Member(std::string_view name, double value) {
  Name(name);
  char number[32];
  snprintf(number, sizeof(number), "%.6g", value);
  Number(number);
}

void JsonWriter::MembersOf(std::string_view object) {
  std::string_view members = Trimmed(object);
  members = Trimmed(members.substr(1, members.size() - 2));
  if (members.empty()) return;
  Separate();
  text_ += members;
}

void JsonWriter::Open(char bracket) {
  Separate();
  text_ += bracket;
  needs_comma_ = false;
}

void JsonWriter::Close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
}

void JsonWriter::Separate() {
  if (needs_comma_) text_ += ", ";
  needs_comma_ = true;
}

void JsonWriter::Name(std::string_view name) {
  Separate();
  Text(name);
  text_ += ": ";
  needs_comma_ = false;
}

void JsonWriter::Number(std::string_view digits) {
  text_ += digits;
  needs_comma_ = true;
}

void JsonWriter::Text(std::string_view value) {
  text_ += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      text_ += escaped;
    } else {
      text_ += c;
    }
  }
  text_ += '"';
  needs_comma_ = true;
}

}  // namespace neuroncore
