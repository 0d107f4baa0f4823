// SPDX-License-Identifier: Apache-2.0
//
// Reading the text of a StableHLO program.
#pragma once

#include <cctype>
#include <cstring>
#include <string_view>

#include "program_signature.h"

namespace neuroncore {

// A cursor over the text. Methods return false on a mismatch, with the cursor anywhere.
class Cursor {
 public:
  Cursor(std::string_view text, size_t position) : text_(text), position_(position) {}

  size_t position() const { return position_; }
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  void SkipSpace() {
    while (position_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[position_]))) {
        ++position_;
      } else if (text_.compare(position_, 2, "//") == 0) {
        size_t end = text_.find('\n', position_);
        position_ = end == std::string_view::npos ? text_.size() : end;
      } else {
        return;
      }
    }
  }

  bool Take(std::string_view token) {
    SkipSpace();
    if (text_.compare(position_, token.size(), token) != 0) return false;
    position_ += token.size();
    return true;
  }

  std::string_view TakeWord() {
    size_t start = position_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || strchr("_.$-", peek()) != nullptr) {
      if (peek() == '\0') break;
      ++position_;
    }
    return text_.substr(start, position_ - start);
  }

  // Takes everything up to `end`, and that too.
  bool TakeUntil(char end, std::string_view* taken) {
    const size_t found = text_.find(end, position_);
    if (found == std::string_view::npos) return false;
    *taken = text_.substr(position_, found - position_);
    position_ = found + 1;
    return true;
  }

  // The cursor stands on an opening bracket: takes everything up to the closing one, inclusive.
  bool TakeBalanced(std::string_view* taken) {
    size_t start = position_;
    int depth = 0;
    while (position_ < text_.size()) {
      char c = text_[position_++];
      if (c == '"') {
        while (position_ < text_.size() && text_[position_] != '"') position_ += text_[position_] == '\\' ? 2 : 1;
        ++position_;
      } else if (strchr("{[(<", c) != nullptr) {
        ++depth;
      } else if (c == '-' && peek() == '>') {
        ++position_;  // the arrow of a function type is no bracket
      } else if (strchr("}])>", c) != nullptr && --depth == 0) {
        *taken = text_.substr(start, position_ - start);
        return true;
      }
    }
    return false;
  }

 private:
  std::string_view text_;
  size_t position_;
};

// Takes "tensor<4x4xf32>". False after Fail().
bool ParseType(Cursor* cursor, TensorType* type);

}  // namespace neuroncore
