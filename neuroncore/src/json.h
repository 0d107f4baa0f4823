// SPDX-License-Identifier: Apache-2.0
//
// Writes JSON; nothing here reads it, but for telling whether a text is an object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace neuroncore {

// A cheap look: braces around, balanced, outside of strings.
bool IsJsonObject(std::string_view text);

class JsonWriter {
 public:
  void BeginObject() { Open('{'); }
  void EndObject() { Close('}'); }
  void BeginArray(std::string_view name) {
    Name(name);
    Open('[');
  }
  void EndArray() { Close(']'); }
  void Member(std::string_view name, std::string_view value) {
    Name(name);
    Text(value);
  }
  void Member(std::string_view name, const std::string& value) { Member(name, std::string_view(value)); }
  void Member(std::string_view name, int64_t value) {
    Name(name);
    Number(std::to_string(value));
  }
  void Member(std::string_view name, double value);
  void Element(int64_t value) {
    Separate();
    Number(std::to_string(value));
  }
  void Element(std::string_view value) {
    Separate();
    Text(value);
  }
  // The members of a JSON object, as they are.
  void MembersOf(std::string_view object);

  const std::string& text() const { return text_; }

 private:
  void Open(char bracket);
  void Close(char bracket);
  void Separate();
  void Name(std::string_view name);
  void Text(std::string_view value);
  void Number(std::string_view digits);

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace neuroncore
