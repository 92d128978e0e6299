// The problem, the best plan so far, and the states of the search.
#pragma once

#include <limits>
#include <numeric>

#include "prices.h"

namespace specfit {

using Indices = std::vector<int>;
using Numbers = std::vector<double>;
using Flags = std::vector<char>;

// Differences of worth below this many tokens are rounding.
constexpr double TINY = 1e-10;
constexpr double ENDLESS = std::numeric_limits<double>::infinity();

// The tree and its prices, as search.py hands them over.
struct Problem {
    int size, limit;
    const std::int32_t *parents;  // [n]
    const double *chances;        // [n], the first of all lines together
    const double *unforeseen;     // [n] or null
    const double *rows_ms;        // [limit + 1]
    const double *expert_ms;      // [limit + 1]
    double spent_ms;
    ExpertSets sets;

    double ms(int rows, double weighted_union) const {
        return spent_ms + rows_ms[rows] + expert_ms[rows] * weighted_union;
    }
    double lone(int node) const { return unforeseen ? unforeseen[node] : 0.0; }
};

// The best plan so far, without the root. For the ratio, `rate` is the best one reached.
struct Best {
    const bool by_ratio;
    double rate;
    double worth;  // its E - rate * T
    Indices nodes;

    // What a plan with so many rows must exceed to become the best one.
    double needed(int rows) const {
        return rows < 1 + static_cast<int>(nodes.size()) ? worth - TINY : worth + TINY;
    }

    // Takes the plan if it is better, or as good with fewer rows.
    void offer(const Indices &plan, double committed, double ms) {
        const double gain = committed - rate * ms - worth;
        if (!(gain > TINY || (gain > -TINY && plan.size() < nodes.size()))) return;
        nodes = plan;
        if (!(gain > TINY)) return;
        if (by_ratio) rate = committed / ms;
        worth = committed - rate * ms;
    }
};

// The plans that keep `kept` (and the root), and any of the undecided `open` nodes.
struct State {
    Indices kept;
    double committed;       // E of the kept nodes
    double weighted_union;  // theirs
    Indices counts;         // [c]: row counts that may still win
    Indices open;           // [u]: undecided nodes in falling order of chance, parents first
    Indices up;             // [u]: position of a node's parent in `open`; its own if that is kept
    Flags live;             // [c, u]: the node may belong to a winning plan with that many rows
    Prices prices;          // what the undecided nodes would add to the union
    Numbers bids;           // [u]: for the experts that they share
    Numbers dues;           // [u]: what each pays its parent to come along; itself if that is kept

    int rows() const { return 1 + static_cast<int>(kept.size()); }

    bool below_kept(std::size_t v) const { return up[v] == static_cast<int>(v); }

    // [u]: the nodes that may belong to some winning plan.
    Flags alive() const {
        Flags nodes(open.size());
        for (auto row = live.begin(); row != live.end(); row += open.size())
            for (std::size_t v = 0; v < open.size(); v++) nodes[v] |= row[v];
        return nodes;
    }

    // Leaves only the undecided nodes that are set [u]. The others are ruled out with all that lies
    // below them, or they are kept from now on, and their items `paid` [item].
    void narrow(const Flags &nodes, const Flags *paid = nullptr) {
        const std::size_t size = open.size();
        if (std::find(nodes.begin(), nodes.end(), 0) == nodes.end()) return;
        prices = prices.only(nodes, paid);
        Indices position(size);
        std::size_t left = 0;
        for (std::size_t v = 0; v < size; v++) {
            if (!nodes[v]) continue;
            position[v] = static_cast<int>(left);
            open[left] = open[v];
            up[left] = position[nodes[up[v]] ? up[v] : v];
            bids[left] = bids[v];
            dues[left++] = dues[v];
        }
        open.resize(left);
        up.resize(left);
        bids.resize(left);
        dues.resize(left);
        auto to = live.begin();
        for (auto row = live.begin(); row != live.end(); row += size)
            for (std::size_t v = 0; v < size; v++)
                if (nodes[v]) *to++ = row[v];
        live.erase(to, live.end());
    }

    // The plans without the node at `place`, hence without what lies below it.
    State without(std::size_t place) const {
        Flags nodes(open.size(), 1);
        nodes[place] = 0;
        for (std::size_t v = place + 1; v < open.size(); v++) nodes[v] = nodes[up[v]];
        State rest = *this;
        rest.narrow(nodes);
        return rest;
    }

    // The plans with the node at `place`, whose parent is kept. No row count or undecided node may
    // be left.
    State including(std::size_t place, double chance, const Numbers &item_weights) const {
        State with = *this;
        with.kept.push_back(open[place]);
        with.committed += chance;
        with.weighted_union += prices.own[place];
        Flags nodes(open.size(), 1), paid(item_weights.size());
        nodes[place] = 0;
        for (int use = prices.first[place]; use < prices.first[place + 1]; use++) {
            paid[prices.items[use]] = 1;
            with.weighted_union += item_weights[prices.items[use]];
        }
        std::size_t left = 0;
        for (std::size_t c = 0; c < counts.size(); c++) {
            const auto row = live.begin() + c * open.size();
            if (!row[place] || counts[c] <= with.rows()) continue;
            std::copy_n(row, open.size(), with.live.begin() + left * open.size());
            with.counts[left++] = counts[c];
        }
        with.counts.resize(left);
        with.live.resize(left * open.size());
        with.narrow(nodes, &paid);
        return with;
    }
};

// Puts `order` in falling order of `values`; of equal ones the order stays. Made for orders that
// are nearly right.
inline void sort_falling(Indices &order, const Numbers &values) {
    for (std::size_t i = 1; i < order.size(); i++) {
        const int moved = order[i];
        std::size_t at = i;
        for (; at > 0 && values[order[at - 1]] < values[moved]; at--) order[at] = order[at - 1];
        order[at] = moved;
    }
}

inline Indices first_numbers(std::size_t size) {
    Indices numbers(size);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

}  // namespace specfit
