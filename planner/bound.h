// What the plans of a state can reach at most.
//
// With a price for every node (prices.h) a plan of n rows gains at most what the best n - 1 nodes
// gain, whatever the cost tables. That a node needs its parent is priced the same way: with any
// dues that children pay their parents it stays a bound, and they make up for parents that pay only
// because of their children.
#pragma once

#include "state.h"

namespace specfit {

// The largest factor of a bid in one step (squared), and the smallest bid relative to the largest.
constexpr double STRETCH = 5.0;
constexpr double LEAST_BID = 1e-200;
// What part of the difference in gain a child pays its parent in one step.
constexpr double PAYMENT = 0.25;

class Bound {
  public:
    // What there is to say about the row count that promises most:
    double slack = -ENDLESS;  // by how much the bound exceeds what is needed
    Numbers gain;          // [u]: what each node gains, after its share and dues

    Bound(const Problem &problem, SharedItems &shared) : p_(problem), shared_(shared) {}

    // Takes the bound by the state's bids and dues. Drops the row counts of which no plan is good
    // enough, and clears `live` where none with that node is.
    void take(State &state, const Best &best) {
        const std::size_t size = state.open.size();
        shared_.split(state.prices, state.bids, shares_);
        worths_.assign(size, 0.0);
        for (std::size_t v = 0; v < size; v++) {
            worths_[v] += p_.chances[state.open[v]] - state.dues[v];
            worths_[state.up[v]] += state.dues[v];
        }
        order_ = first_numbers(size);
        gain.resize(size);
        slack = -ENDLESS;
        std::size_t left = 0;
        for (std::size_t c = 0; c < state.counts.size(); c++) {
            const int rows = state.counts[c];
            char *from = state.live.data() + c * size, *to = state.live.data() + left * size;
            if (take(state, rows, best, from, to)) state.counts[left++] = rows;
        }
        state.counts.resize(left);
        state.live.resize(left * size);
        if (left) set_gain(best.rate * p_.expert_ms[critical_]);
    }

    // Moves the state's bids and dues, as of the bound just taken, towards a better bound.
    void step(State &state) const {
        const std::size_t size = state.open.size();
        for (std::size_t v = 0; v < size; v++) {
            // By how much the gain exceeds that of the last node kept, relative to the share.
            const double surplus = (gain[v] - last_) / (worths_[v] - gain[v] + TINY);
            const double factor = std::clamp(1.0 + surplus, 1 / STRETCH, STRETCH);
            state.bids[v] *= factor * factor;
            const double more = PAYMENT * (gain[v] - gain[state.up[v]]);
            state.dues[v] = std::max(state.dues[v] + more, 0.0);
        }
        const double highest = *std::max_element(state.bids.begin(), state.bids.end());
        for (double &bid : state.bids) bid = std::max(bid / highest, LEAST_BID);
    }

  private:
    void set_gain(double expert_price) {
        for (std::size_t v = 0; v < gain.size(); v++)
            gain[v] = worths_[v] - expert_price * shares_[v];
    }

    // The same for one row count: writes to `to` [u] which nodes of `from` [u] may belong to a plan
    // that is good enough. False if there is none.
    bool take(const State &state, int rows, const Best &best, const char *from, char *to) {
        set_gain(best.rate * p_.expert_ms[rows]);
        const double ms = p_.ms(rows, state.weighted_union);
        const double base = state.committed - best.rate * ms - best.needed(rows);
        double all = base;  // with whatever gains anything
        for (double one : gain) all += std::max(one, 0.0);
        if (!(all > 0)) return false;
        sort_falling(order_, gain);  // nearly right from the row count before
        int more = rows - state.rows();
        double others = 0, last = -ENDLESS;
        for (std::size_t i = 0; i < order_.size() && more > 0; i++) {
            if (!from[order_[i]]) continue;
            if (--more > 0)
                others += gain[order_[i]];
            else
                last = gain[order_[i]];
        }
        const double spare = base + others;
        if (!(spare + last > 0)) return false;
        // A node that is forced in takes the place of the last of the best.
        for (std::size_t v = 0; v < gain.size(); v++) to[v] = from[v] & (gain[v] > -spare);
        for (std::size_t v = 0; v < gain.size(); v++) to[v] &= to[state.up[v]];
        if (spare + last > slack) {
            slack = spare + last;
            critical_ = rows;
            last_ = last;
        }
        return true;
    }

    const Problem &p_;
    SharedItems &shared_;
    int critical_ = 0;  // the row count that promises most,
    double last_ = 0;   // and the gain of the last node kept there
    Numbers worths_;    // [u]: chances after dues
    Numbers shares_;    // [u]: of the experts' prices
    Indices order_;     // [u]: by falling gain
};

}  // namespace specfit
