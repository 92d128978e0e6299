// The exact search for the draft subtree to verify, called by search.py.
//
// Among the ancestor-closed subtrees S with at most `limit` nodes, the root included, it finds the
// one with the most expected tokens E(S) for its time T(S): either the largest E - rate * T, or the
// largest ratio E / T. The tables of T are arbitrary: cliffs, falling steps, any price of experts.
//
// Branch and bound, and nearly always bound alone:
//
// 1. The likeliest 1, 2 ... nodes give a first plan. Row counts and nodes that could not beat it if
//    all new experts were free, or only those of the node and its ancestors had to be paid, are
//    dropped. Where rows cost much this leaves a handful of nodes, and often none.
// 2. With the price of every shared expert split over its users (prices.h), what a plan of n rows
//    can reach at most is a sum over n - 1 nodes (bound.h). A node is dropped for n rows if no plan
//    of n rows with it can beat the best one known. How prices are split, and what children pay
//    their parents, is moved towards the best bound for the row count that promises most (a
//    multiplicative and a projected gradient step of the dual problem), and the bound is taken
//    again, as long as it becomes much tighter. For linear tables it converges to the minimum cut.
//    The nodes in the order of what they gain give further plans to beat.
// 3. What is left is decided node by node, parents first, "keep" before "drop", with the bound of
//    step 2 in every state. The last few nodes are settled by looking at all their subsets.
//
// The ratio needs no iteration of its own: a plan beats the ratio r of the best known plan exactly
// if its E - r * T is positive, so the search runs with r as its rate and raises it with every
// better plan. A higher rate only lowers values, so what was ruled out stays ruled out.
//
// Of plans of equal worth the one with fewer rows is taken. There is no clock: effort is counted in
// states, and a search that stops at `max_states` says that its plan is not proven.
#include <new>
#include <utility>

#include "bound.h"

namespace specfit {
namespace {

// In one state the bound is taken again while it is this much tighter than the last one, or drops
// nodes; at most so many times.
constexpr double PROGRESS = 0.8;
constexpr int ROUNDS = 20;

class Search {
  public:
    Best best;

    // rate: for the ratio, that of the root alone. few: so many nodes are settled by their subsets.
    Search(const Problem &problem, bool by_ratio, double rate, double root_union, std::size_t few)
        : best{by_ratio, rate, problem.chances[0] - rate * problem.ms(1, root_union), {}},
          p_(problem),
          few_(few),
          root_union_(root_union) {}

    // Returns the states visited; `proven` is false where there were more.
    std::int64_t run(std::int64_t max_states, bool &proven) {
        begin();
        std::int64_t states = 0;
        for (; !pending_.empty() && states < max_states; states++) {
            State state = std::move(pending_.back());
            pending_.pop_back();
            if (tighten(state)) branch(state);
        }
        proven = pending_.empty();
        return states;
    }

  private:
    // Step 1: leaves the state to start from in `pending_`, unless the best plan is known already.
    void begin() {
        // Of equal chances the parent, which has the lower index, comes first.
        Indices nodes = first_numbers(p_.size);
        nodes.erase(nodes.begin());
        std::stable_sort(nodes.begin(), nodes.end(),
                         [this](int a, int b) { return p_.chances[a] > p_.chances[b]; });
        Numbers hoped(p_.limit + 1, p_.chances[0]);  // [rows]: E of the likeliest nodes
        int most = 1;                      // the most rows that may win
        for (int rows = 2; rows <= p_.limit; rows++) {
            hoped[rows] = hoped[rows - 1] + p_.chances[nodes[rows - 2]];
            if (hoped[rows] > least(rows, root_union_)) most = rows;
        }
        offer_likeliest(nodes, most);
        nodes.resize(likely(nodes, hoped, most));
        State state = undecided(nodes);
        const Numbers path_unions = unions_of_paths(state);
        for (int rows = 2; rows <= most; rows++) {
            int good = 0;
            const std::size_t row = state.live.size();
            for (std::size_t v = 0; v < nodes.size(); v++) {
                const double chance = p_.chances[nodes[v]];
                const double hope = std::min(hoped[rows], hoped[rows - 1] + chance);
                const bool live = (state.below_kept(v) || state.live[row + state.up[v]]) &&
                                  hope > least(rows, path_unions[v]);
                state.live.push_back(live);
                good += live;
            }
            if (good >= rows - 1)
                state.counts.push_back(rows);
            else
                state.live.resize(row);
        }
        if (state.counts.empty()) return;
        state.narrow(state.alive());
        state.prices = new_expert_prices(p_.sets, state.open, state.up, shared_);
        for (std::size_t v = 0; v < state.open.size(); v++)
            state.prices.own[v] += p_.lone(state.open[v]);
        covered_.resize(shared_.weights.size());
        if (state.open.size() <= few_)
            offer_subsets(state);
        else
            pending_.push_back(std::move(state));
    }

    // What E of a plan with so many rows and at least such a union must exceed.
    double least(int rows, double weighted_union) const {
        if (left_out(rows)) return ENDLESS;
        return best.needed(rows) + best.rate * p_.ms(rows, weighted_union);
    }

    // Of no time is no ratio.
    bool left_out(int rows) const { return best.by_ratio && !(p_.ms(rows, root_union_) > 0); }

    // How many of the likeliest nodes can pay, were all new experts free.
    std::size_t likely(const Indices &nodes, const Numbers &hoped, int most) const {
        std::size_t count = 0;
        for (int rows = 2; rows <= most; rows++) {
            // A node that is forced in takes the place of the last of the likeliest.
            const double chance = least(rows, root_union_) - hoped[rows - 1];
            const auto end = std::find_if(nodes.begin(), nodes.end(),
                                          [&](int node) { return !(p_.chances[node] > chance); });
            // Where just enough can, they are the likeliest, and that plan was offered.
            const std::size_t good = end - nodes.begin();
            if (good >= static_cast<std::size_t>(rows)) count = std::max(count, good);
        }
        return count;
    }

    // The state in which only the root is kept, without row counts and prices.
    State undecided(const Indices &nodes) const {
        const std::size_t size = nodes.size();
        State state;
        state.committed = p_.chances[0];
        state.weighted_union = root_union_;
        state.open = nodes;
        state.up.resize(size);
        state.prices = Prices(size);
        state.bids.resize(size);
        state.dues.resize(size);
        Indices position(p_.size);
        for (std::size_t v = 0; v < size; v++) {
            position[nodes[v]] = static_cast<int>(v);
            const int parent = p_.parents[nodes[v]];
            state.up[v] = position[parent == 0 ? nodes[v] : parent];
            state.bids[v] = std::max(p_.chances[nodes[v]], LEAST_BID);
        }
        return state;
    }

    // [u]: weighted union of each node and its ancestors, which plans with the node have at least.
    Numbers unions_of_paths(const State &state) const {
        const std::size_t words = p_.sets.words;
        std::vector<Word> reach(state.open.size() * words);
        Numbers unions(state.open.size());
        for (std::size_t v = 0; v < unions.size(); v++) {
            const std::size_t up = state.up[v];
            const bool top = state.below_kept(v);
            const Word *above = top ? p_.sets.of(0) : reach.data() + up * words;
            Word *with = reach.data() + v * words;
            std::copy_n(above, words, with);
            unions[v] = top ? root_union_ : unions[up];
            unions[v] += p_.sets.add(state.open[v], with) + p_.lone(state.open[v]);
        }
        return unions;
    }

    void offer(const Indices &plan, double committed, double weighted_union) {
        const int rows = 1 + static_cast<int>(plan.size());
        if (!left_out(rows)) best.offer(plan, committed, p_.ms(rows, weighted_union));
    }

    // Offers the likeliest 1, 2 ... of `nodes`, up to so many rows.
    void offer_likeliest(const Indices &nodes, int most) {
        std::vector<Word> sofar(p_.sets.words);
        p_.sets.add(0, sofar.data());
        double committed = p_.chances[0], weighted_union = root_union_;
        Indices plan;
        for (int rows = 2; rows <= most; rows++) {
            const int node = nodes[rows - 2];
            plan.push_back(node);
            committed += p_.chances[node];
            weighted_union += p_.sets.add(node, sofar.data()) + p_.lone(node);
            offer(plan, committed, weighted_union);
        }
    }

    // Step 2: rules out what cannot lead to a better plan, and offers the plans that the bounds
    // suggest. False if nothing is left to decide.
    bool tighten(State &state) {
        Bound bound(p_, shared_);
        double slack = ENDLESS;
        for (int round = 0;; round++) {
            const std::size_t size = state.open.size();
            if (size <= few_) {
                offer_subsets(state);
                return false;
            }
            if (round == ROUNDS) return true;
            bound.take(state, best);
            if (state.counts.empty()) return false;
            offer_by_gain(state, bound.gain);
            bound.step(state);
            state.narrow(state.alive());
            if (state.open.size() == size && bound.slack > PROGRESS * slack) return true;
            slack = bound.slack;
        }
    }

    // Offers the plans that keep the state's nodes and the 1, 2 ... that gain most, parents first.
    void offer_by_gain(const State &state, Numbers gain) {
        for (std::size_t v = 0; v < gain.size(); v++)
            gain[v] = std::min(gain[v], gain[state.up[v]]);
        Indices order = first_numbers(gain.size()), plan = state.kept;
        sort_falling(order, gain);
        std::fill(covered_.begin(), covered_.end(), 0);
        double committed = state.committed, weighted_union = state.weighted_union;
        for (int v : order) {
            if (static_cast<int>(plan.size()) + 1 == state.counts.back()) break;
            plan.push_back(state.open[v]);
            committed += p_.chances[state.open[v]];
            weighted_union += cover(state.prices, v);
            offer(plan, committed, weighted_union);
        }
    }

    // Step 3: decides one more node; "keep" is to be looked at first.
    void branch(const State &state) {
        std::size_t place = 0;
        while (!state.below_kept(place)) place++;
        const double chance = p_.chances[state.open[place]];
        State with = state.including(place, chance, shared_.weights), rest = state.without(place);
        offer(with.kept, with.committed, with.weighted_union);
        if (!rest.open.empty()) pending_.push_back(std::move(rest));
        if (!with.open.empty() && !with.counts.empty()) pending_.push_back(std::move(with));
    }

    // Offers all plans that keep the state's nodes and any of the few undecided ones.
    void offer_subsets(const State &state) {
        std::fill(covered_.begin(), covered_.end(), 0);
        Indices plan = state.kept;
        Flags chosen(state.open.size());
        offer_subsets(state, 0, plan, chosen, state.committed, state.weighted_union);
    }

    // Those that keep the nodes chosen before `v` besides, and any from there on.
    void offer_subsets(const State &state, std::size_t v, Indices &plan, Flags &chosen,
                       double committed, double weighted_union) {
        if (v == state.open.size()) return;
        const bool possible = state.below_kept(v) || chosen[state.up[v]];
        if (possible && static_cast<int>(plan.size()) + 1 < p_.limit) {
            const double more = committed + p_.chances[state.open[v]];
            const double wider = weighted_union + cover(state.prices, v);
            chosen[v] = 1;
            plan.push_back(state.open[v]);
            offer(plan, more, wider);
            offer_subsets(state, v + 1, plan, chosen, more, wider);
            plan.pop_back();
            chosen[v] = 0;
            uncover(state.prices, v);
        }
        offer_subsets(state, v + 1, plan, chosen, committed, weighted_union);
    }

    // What the node adds to the union with the items that are covered; covers its own.
    double cover(const Prices &prices, std::size_t v) {
        double added = prices.own[v];
        for (int use = prices.first[v]; use < prices.first[v + 1]; use++)
            if (covered_[prices.items[use]]++ == 0) added += shared_.weights[prices.items[use]];
        return added;
    }

    void uncover(const Prices &prices, std::size_t v) {
        for (int use = prices.first[v]; use < prices.first[v + 1]; use++)
            covered_[prices.items[use]]--;
    }

    const Problem &p_;
    const std::size_t few_;
    const double root_union_;
    SharedItems shared_;
    Indices covered_;  // [item]: by how many nodes
    std::vector<State> pending_;
};

enum Outcome : std::int32_t { FOUND, UNLIKELY_PARENT, PARENT_AFTER_CHILD, NO_TIME, NO_MEMORY };

struct Found {
    double committed, ms;
    std::int64_t states;
    std::int32_t proven;
};

Outcome solve(const Problem &p, bool by_ratio, double rate, std::int64_t max_states,
              std::size_t few, std::uint8_t *keep, Found &found) {
    for (int v = 1; v < p.size; v++) {
        if (p.parents[v] < 0 || p.parents[v] >= v) return PARENT_AFTER_CHILD;
        if (!(p.chances[v] <= p.chances[p.parents[v]])) return UNLIKELY_PARENT;
    }
    std::vector<Word> sofar(p.sets.words);
    double weighted_union = p.sets.add(0, sofar.data()) + p.lone(0);
    const double root_ms = p.ms(1, weighted_union);
    if (by_ratio && !(root_ms > 0)) return NO_TIME;
    Search search(p, by_ratio, by_ratio ? p.chances[0] / root_ms : rate, weighted_union, few);
    bool proven = false;
    found.states = search.run(max_states, proven);
    found.proven = proven;
    found.committed = p.chances[0];
    std::fill_n(keep, p.size, std::uint8_t{0});
    keep[0] = 1;
    for (int node : search.best.nodes) {
        keep[node] = 1;
        found.committed += p.chances[node];
        weighted_union += p.sets.add(node, sofar.data()) + p.lone(node);
    }
    found.ms = p.ms(1 + static_cast<int>(search.best.nodes.size()), weighted_union);
    return FOUND;
}

}  // namespace
}  // namespace specfit

// `best_subtree` of search.py, which checks the sizes. `experts` [size, layers, words] and
// `unforeseen` [size] may be null, the tables have `limit` + 1 entries, and `few` nodes are settled
// by looking at all their subsets. Writes `keep` [size] and `found` where the outcome is FOUND.
extern "C" std::int32_t specfit_best_subtree(
    std::int32_t size, std::int32_t layers, std::int32_t words, const std::int32_t *parents,
    const double *chances, const std::uint64_t *experts, const double *unforeseen,
    const double *layer_weights, const double *rows_ms, const double *expert_ms, double spent_ms,
    std::int32_t by_ratio, double rate, std::int32_t limit, std::int64_t max_states,
    std::int32_t few, std::uint8_t *keep, specfit::Found *found) noexcept {
    using namespace specfit;
    try {
        const ExpertSets sets(experts, layer_weights, layers, words);
        const Problem problem{size,    limit,     parents,  chances, unforeseen,
                              rows_ms, expert_ms, spent_ms, sets};
        return solve(problem, by_ratio, rate, max_states, few, keep, *found);
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    }
}
