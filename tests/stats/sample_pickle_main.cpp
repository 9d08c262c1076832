// Prints a pickle of every kind of value, for the test that reads it with Python.
#include <cstdio>

#include "stats/pickle_writer.h"

int main() {
  std::string out;
  spillway::PickleWriter pickle(out);
  pickle.begin_dict();
  pickle.key("numbers");
  pickle.begin_list();
  for (const int64_t value : {INT64_MIN, int64_t{INT32_MIN} - 1, int64_t{INT32_MIN}, int64_t{-1}, int64_t{0},
                              int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{INT32_MAX},
                              int64_t{INT32_MAX} + 1, INT64_MAX}) {
    pickle.integer(value);
  }
  pickle.unsigned_integer(UINT64_MAX);
  pickle.real(-0.1);
  pickle.end_list();
  pickle.key("texts");
  pickle.begin_tuple();
  pickle.text("");
  pickle.text(
      "gr\xc3\xbc\xc3\x9f"
      "e");
  pickle.text("broken \xff\xc3 \xed\xa0\x80");
  pickle.text(std::string(1000, 'x'));
  pickle.end_tuple();
  pickle.key("others");
  pickle.begin_list();
  pickle.none();
  pickle.boolean(true);
  pickle.boolean(false);
  pickle.begin_list();
  pickle.end_list();
  pickle.begin_dict();
  pickle.end_dict();
  pickle.begin_tuple();
  pickle.end_tuple();
  pickle.end_list();
  pickle.key("long list");
  pickle.begin_list();
  for (int64_t i = 0; i < 2500; ++i) pickle.integer(i);
  pickle.end_list();
  pickle.key("large dict");
  pickle.begin_dict();
  for (int64_t i = 0; i < 2500; ++i) pickle.item("key " + std::to_string(i), i);
  pickle.end_dict();
  pickle.key("shared");
  pickle.begin_list();
  pickle.begin_list();
  pickle.text("once");
  pickle.end_list();
  const uint32_t shared = pickle.share();
  for (int i = 0; i < 3; ++i) pickle.reuse(shared);
  pickle.end_list();
  pickle.end_dict();
  pickle.finish();
  return std::fwrite(out.data(), 1, out.size(), stdout) == out.size() ? 0 : 1;
}
