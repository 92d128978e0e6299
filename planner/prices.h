// What a set of draft nodes must at least pay for its experts.
//
// An expert of a layer (an item) is loaded once, whoever uses it, so the experts of a subtree cost
// less than the sum over its nodes. Split the price of each item over its users in any way: a set
// of nodes then costs at least the sum of its nodes' shares, since an item it needs is paid in full
// while its members hold a part of the shares at most. A price per node makes the bound modular,
// hence easy; how tight it is depends on the split. The split here is by bids: every user pays in
// proportion to its bid. Equal bids are weak where rows are cheap, because many unlikely nodes then
// carry most of the price of an expert that one likely node needs. Bids equal to the nodes' chances
// are near the best split for the likeliest plans, and any split that matters is the limit of some
// bids, so that moving the bids (search.cpp) brings the bound down to that of a maximum closure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// Compilers assume a processor without a population count on x86-64; all since 2008 have one.
#if defined(__x86_64__)
#define COUNTS_BITS __attribute__((target("popcnt")))
#else
#define COUNTS_BITS
#endif

namespace specfit {

using Word = std::uint64_t;

// Words in a row whose experts have the same weight.
struct Stretch {
    std::size_t begin, end;
    double weight;
};

// Which experts each node uses: rows of `words` words, of which those in `priced` cost something.
struct ExpertSets {
    const Word *rows;
    std::size_t words;
    std::vector<Stretch> priced;

    // experts [node, layer, word], weights [layer]; null where experts are no part of the cost.
    ExpertSets(const Word *experts, const double *weights, std::size_t layers, std::size_t width)
        : rows(experts), words(experts ? layers * width : 0) {
        double weight = 0;  // of the layer before
        for (std::size_t layer = 0; layer < layers && words; layer++) {
            if (weights[layer] > 0 && weights[layer] == weight)
                priced.back().end += width;
            else if (weights[layer] > 0)
                priced.push_back({layer * width, (layer + 1) * width, weights[layer]});
            weight = weights[layer];
        }
    }

    const Word *of(int node) const { return rows + node * words; }

    // The weight of what `node` adds to the experts in `sofar` [word]; adds them.
    COUNTS_BITS double add(int node, Word *sofar) const {
        const Word *set = of(node);
        double weight = 0;
        for (const Stretch &stretch : priced) {
            int count = 0;
            for (std::size_t w = stretch.begin; w < stretch.end; w++) {
                count += __builtin_popcountll(set[w] & ~sofar[w]);
                sofar[w] |= set[w];
            }
            weight += stretch.weight * count;
        }
        return weight;
    }
};

// What undecided nodes would add to the weighted union of the nodes already in the subtree. A node
// does not use what one of its ancestors brings, for it never comes without them.
struct Prices {
    std::vector<double> own;  // [u]: weight of the new experts that no other node uses
    std::vector<int> first;   // [u + 1]: where in `items` the shared ones of each node begin
    std::vector<int> items;   // [use]

    explicit Prices(std::size_t size = 0) : own(size), first(size + 1) {}

    // The prices for the nodes that are set [u], the others having been ruled out, once the items
    // that are set in `paid` [item] are paid.
    Prices only(const std::vector<char> &nodes, const std::vector<char> *paid) const {
        Prices rest(std::count(nodes.begin(), nodes.end(), 1));
        rest.items.reserve(items.size());
        for (std::size_t v = 0, left = 0; v < nodes.size(); v++) {
            if (!nodes[v]) continue;
            rest.own[left++] = own[v];
            for (int use = first[v]; use < first[v + 1]; use++)
                if (!paid || !(*paid)[items[use]]) rest.items.push_back(items[use]);
            rest.first[left] = static_cast<int>(rest.items.size());
        }
        return rest;
    }
};

// The weights [item] of what several nodes share, and room to add up the bids for them.
struct SharedItems {
    std::vector<double> weights, offered;

    // Each node's share [u] of the prices, in weighted experts, for `bids` [u] > 0.
    void split(const Prices &prices, const std::vector<double> &bids, std::vector<double> &shares) {
        const std::size_t size = bids.size();
        shares.resize(size);
        std::fill(offered.begin(), offered.end(), 1e-300);  // nobody may use an item any more
        for (std::size_t v = 0; v < size; v++)
            for (int use = prices.first[v]; use < prices.first[v + 1]; use++)
                offered[prices.items[use]] += bids[v];
        for (std::size_t item = 0; item < weights.size(); item++)
            offered[item] = weights[item] / offered[item];
        for (std::size_t v = 0; v < size; v++) {
            double per_bid = 0;
            for (int use = prices.first[v]; use < prices.first[v + 1]; use++)
                per_bid += offered[prices.items[use]];
            shares[v] = prices.own[v] + bids[v] * per_bid;
        }
    }
};

// Prices of the undecided nodes `open` [u], only the root being in the subtree; sets the weights of
// what they share. up [u]: position of each node's parent, its own for children of the root.
COUNTS_BITS inline Prices new_expert_prices(const ExpertSets &sets, const std::vector<int> &open,
                                            const std::vector<int> &up, SharedItems &shared) {
    const std::size_t words = sets.words, size = open.size();
    std::vector<Word> once(words), twice(words);  // used by a node at least, by two at least
    // [u, word]: what each node and its ancestors use, and what only the node does.
    const std::unique_ptr<Word[]> reach(new Word[size * words]), added(new Word[size * words]);
    for (std::size_t v = 0; v < size; v++) {
        const std::size_t parent = up[v];
        const Word *set = sets.of(open[v]);
        const Word *above = parent == v ? sets.of(0) : reach.get() + parent * words;
        Word *with = reach.get() + v * words, *fresh = added.get() + v * words;
        for (std::size_t w = 0; w < words; w++) {
            const Word one = set[w] & ~above[w];
            with[w] = set[w] | above[w];
            fresh[w] = one;
            twice[w] |= once[w] & one;
            once[w] |= one;
        }
    }
    std::vector<int> number(words);  // of the first shared item in each word
    for (const Stretch &stretch : sets.priced)
        for (std::size_t w = stretch.begin; w < stretch.end; w++) {
            number[w] = static_cast<int>(shared.weights.size());
            shared.weights.resize(number[w] + __builtin_popcountll(twice[w]), stretch.weight);
        }
    shared.offered.resize(shared.weights.size());

    Prices prices(size);
    for (std::size_t v = 0; v < size; v++) {
        int uses = 0;
        for (const Stretch &stretch : sets.priced) {
            int own = 0;
            for (std::size_t w = stretch.begin; w < stretch.end; w++) {
                own += __builtin_popcountll(added[v * words + w] & ~twice[w]);
                uses += __builtin_popcountll(added[v * words + w] & twice[w]);
            }
            prices.own[v] += stretch.weight * own;
        }
        prices.first[v + 1] = prices.first[v] + uses;
    }
    prices.items.resize(prices.first[size] + 2);  // the loop writes a little too far
    int *item = prices.items.data();
    for (std::size_t v = 0; v < size; v++)
        for (const Stretch &stretch : sets.priced)
            for (std::size_t w = stretch.begin; w < stretch.end; w++) {
                Word rest = added[v * words + w] & twice[w];
                const int uses = __builtin_popcountll(rest);
                // Few words have more than two: at least two are cheaper than a wrong guess.
                for (int use = 0; use < 2 || use < uses; use++, rest &= rest - 1)
                    item[use] = number[w] + __builtin_popcountll(twice[w] & ((rest & -rest) - 1));
                item += uses;
            }
    prices.items.resize(prices.first[size]);
    return prices;
}

}  // namespace specfit
