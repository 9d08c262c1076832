// Ranges for tests of free pages, and a heap's pages in a row that they are taken from.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "allocator/free_pages.h"
#include "tests/support/page_stores.h"

namespace spillway::test {

inline CachedRange range_at(uint32_t quanta, const Layout& layout) {
  CachedRange range;
  range.quanta = quanta;
  range.va = layout.va;
  range.view = layout.view;
  if (layout.view != nullptr) range.view_generation = layout.view->generation.load();
  range.head_page = layout.head_page;
  range.head_begin = layout.head_begin;
  range.head_end = layout.head_end;
  range.runs.assign({layout.runs.begin(), layout.runs.end()});
  range.tail_page = layout.tail_page;
  range.tail_end = layout.tail_end;
  return range;
}

// Whole pages in a row.
inline CachedRange range_of_pages(const PageStore& store, PageId first, uint32_t count) {
  Layout layout;
  layout.va = store.page(first).va;
  layout.runs = RunList(PageRun{first, count});
  return range_at(count * kPageQuanta, layout);
}

// A piece of one page.
inline CachedRange piece(const PageStore& store, PageId page, uint32_t begin, uint32_t end) {
  Layout layout;
  layout.va = store.page(page).va + begin * kQuantumBytes;
  layout.head_page = page;
  layout.head_begin = static_cast<uint16_t>(begin);
  layout.head_end = static_cast<uint16_t>(end);
  return range_at(end - begin, layout);
}

template <typename Kind>
struct Row {
  explicit Row(uint32_t count, BlockGrain grain = BlockGrain::kQuantum)
      : owner(of.heap()), store(of.store()), pages(store, *owner, grain) {
    const ArenaLock lock(of.mutex);
    first = of.must_give(count, owner.get());
    pages.add(first, count);
  }

  // From now on [at, at + count), counted from the first, are used.
  void use(uint32_t at, uint32_t count) {
    ranges.push_back(std::make_unique<CachedRange>(range_of_pages(store, first + at, count)));
    EXPECT_TRUE(pages.take(*ranges.back()));
  }
  CachedRange& use_piece(uint32_t at, uint32_t begin, uint32_t end) {
    ranges.push_back(std::make_unique<CachedRange>(piece(store, first + at, begin, end)));
    EXPECT_TRUE(pages.take(*ranges.back()));
    return *ranges.back();
  }
  std::vector<uint32_t> chosen(uint32_t most) const {
    std::vector<PageId> out;
    pages.choose_free(most, out);
    for (PageId& id : out) id -= first;
    return out;
  }

  StoreOf<Kind> of;
  std::unique_ptr<Heap> owner;
  PageStore& store;
  FreePages pages;
  PageId first = kNoPage;
  std::vector<std::unique_ptr<CachedRange>> ranges;
};

}  // namespace spillway::test
