// The index of ngram.py, which tells the method, and what lookup.py has it draft: in Python the trees
// of a cycle took a quarter of a token's time on a GPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace specfit {
namespace {

using Token = std::int32_t;
using Tokens = std::vector<Token>;

constexpr std::size_t LEAST = 2, LONGEST = 16, OCCURRENCES = 32;

struct Candidate {
    Token token;
    double prob;
};

struct Match {
    std::size_t length;
    Token token;
};

// Candidates by their matches, the latest first; of equals the one seen last comes first.
std::vector<Candidate> backed_off(std::vector<Match> matches) {
    std::vector<Candidate> found;
    if (matches.size() == 1)
        return {{matches[0].token, 1 - std::pow(0.5, double(matches[0].length - LEAST + 1))}};
    std::vector<double> counts;
    const auto index_of = [&](Token token) {
        std::size_t i = 0;
        while (i < found.size() && found[i].token != token) i++;
        return i;
    };
    for (const Match &match : matches) {
        const std::size_t i = index_of(match.token);
        if (i == found.size()) {
            found.push_back({match.token, 0.0});
            counts.push_back(0.0);
        }
        counts[i]++;
    }
    std::stable_sort(matches.begin(), matches.end(),
                     [](const Match &a, const Match &b) { return a.length < b.length; });
    double n = double(matches.size()), reached = LEAST - 1;
    for (std::size_t m = 0; m < matches.size();) {
        // Between two lengths of matches the counts stay: p nears c / N by N + 1 at every step.
        const std::size_t length = matches[m].length;
        const double left = std::pow(n + 1.0, reached - double(length));
        for (std::size_t i = 0; i < found.size(); i++) {
            const double share = counts[i] / n;
            found[i].prob = share + (found[i].prob - share) * left;
        }
        reached = double(length);
        for (; m < matches.size() && matches[m].length == length; m++) {
            counts[index_of(matches[m].token)]--;
            n--;
        }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate &a, const Candidate &b) { return a.prob > b.prob; });
    return found;
}

class Index {
public:
    void extend(const Token *tokens, std::size_t n) {
        for (std::size_t i = 0; i < n; i++) {
            const std::size_t place = text_.size();
            text_.push_back(tokens[i]);
            before_.push_back(-1);
            if (place < LEAST) continue;
            const auto [found, fresh] = latest_.try_emplace(key_at(place), std::int32_t(place));
            if (!fresh) {
                before_[place] = found->second;
                found->second = std::int32_t(place);
            }
        }
    }

    void truncate(std::size_t n) {
        while (text_.size() > n) {
            const std::size_t place = text_.size() - 1;
            if (place >= LEAST) {
                if (before_[place] < 0) latest_.erase(key_at(place));
                else latest_[key_at(place)] = before_[place];
            }
            text_.pop_back();
            before_.pop_back();
        }
    }

    // What may follow the text and `path`, falling.
    std::vector<Candidate> following(const Tokens &path) const {
        const std::size_t known = text_.size() + path.size();
        if (known < LEAST) return {};
        const auto end = [&](std::size_t back) {  // the token so many before the end, from 1 on
            return back <= path.size() ? path[path.size() - back]
                                       : text_[text_.size() - (back - path.size())];
        };
        const auto found = latest_.find(key(end(2), end(1)));
        if (found == latest_.end()) return {};
        std::vector<Match> matches;
        const std::size_t longest = std::min(LONGEST, known);
        for (std::int32_t place = found->second; place >= 0 && matches.size() < OCCURRENCES;
             place = before_[place]) {
            std::size_t n = LEAST;
            const std::size_t most = std::min(longest, std::size_t(place));
            while (n < most && text_[place - n - 1] == end(n + 1)) n++;
            matches.push_back({n, text_[place]});
        }
        return backed_off(std::move(matches));
    }

private:
    static std::uint64_t key(Token first, Token second) {
        return std::uint64_t(std::uint32_t(first)) << 32 | std::uint32_t(second);
    }
    std::uint64_t key_at(std::size_t place) const {
        return key(text_[place - 2], text_[place - 1]);
    }

    Tokens text_;
    // The latest place behind each two tokens; for every place the one before, or -1.
    std::unordered_map<std::uint64_t, std::int32_t> latest_;
    std::vector<std::int32_t> before_;
};

// A node that is to be asked for children. path: its tokens from the root on.
struct Waiting {
    double chance;
    std::int32_t node;
    std::size_t line;
    Tokens path;

    bool operator<(const Waiting &other) const {  // the likeliest is the greatest, of equals the first
        return chance != other.chance ? chance < other.chance : node > other.node;
    }
};

struct Tree {
    std::int32_t size;
    const std::int32_t *parents;
    const Token *tokens;
    const double *chances;

    Waiting waiting(std::int32_t node) const {
        Waiting found{chances[node], node, 0, {}};
        for (std::int32_t at = node; at >= 0; at = parents[at]) {
            found.path.push_back(tokens[at]);
            found.line = std::size_t(at);
        }
        std::reverse(found.path.begin(), found.path.end());
        return found;
    }

    bool has(std::int32_t parent, Token token) const {
        for (std::int32_t node = 0; node < size; node++)
            if (parents[node] == parent && tokens[node] == token) return true;
        return false;
    }
};

struct Draft {
    std::int32_t parent;  // a node of the tree, or its size + the draft
    Token token;
    double prob;
};

// The same, level by level below the `size` nodes of a tree, siblings side by side as they were.
std::vector<Draft> by_breadth(const std::vector<Draft> &drafts, std::int32_t size) {
    std::vector<std::vector<std::int32_t>> children(size + drafts.size());
    for (std::size_t i = 0; i < drafts.size(); i++)
        children[drafts[i].parent].push_back(size + std::int32_t(i));
    std::vector<std::int32_t> order, places(children.size());
    for (std::int32_t node = 0; node < size; node++) order.push_back(places[node] = node);
    for (std::size_t i = 0; i < order.size(); i++)
        for (const std::int32_t child : children[order[i]]) {
            places[child] = std::int32_t(order.size());
            order.push_back(child);
        }
    std::vector<Draft> sorted;
    for (std::size_t i = size; i < order.size(); i++) {
        const Draft &draft = drafts[order[i] - size];
        sorted.push_back({places[draft.parent], draft.token, draft.prob});
    }
    return sorted;
}

}  // namespace
}  // namespace specfit

using namespace specfit;

extern "C" Index *specfit_ngrams() noexcept { return new (std::nothrow) Index; }

extern "C" void specfit_ngrams_free(Index *index) noexcept { delete index; }

// Appends tokens to the text that was cut at `kept`; false if there is no memory.
extern "C" bool specfit_ngrams_extend(Index *index, std::int64_t kept, const Token *tokens,
                                      std::int64_t n) noexcept {
    try {
        index->truncate(std::size_t(kept));
        index->extend(tokens, std::size_t(n));
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }
}

// Writes tokens and probs, with room for OCCURRENCES, and returns how many; -1: no memory.
extern "C" std::int32_t specfit_ngrams_following(const Index *index, const Token *path,
                                                 std::int64_t n, Token *tokens,
                                                 double *probs) noexcept {
    try {
        std::int32_t count = 0;
        for (const Candidate &one : index->following(Tokens(path, path + n))) {
            tokens[count] = one.token;
            probs[count++] = one.prob;
        }
        return count;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}

// `completed` of lookup.py: what the indices, one a line, have behind `asked` [n_asked] and behind
// what is added, level by level. Writes parents, tokens and probs, with room for `most` + `children`, and returns
// how many; -1: no memory. likely: the chance of nodes that are asked for children.
extern "C" std::int32_t specfit_ngrams_complete(
    Index *const *indices, std::int32_t size, const std::int32_t *parents, const Token *tokens,
    const double *chances, const std::int32_t *asked, std::int32_t n_asked, std::int32_t deepest,
    double least_chance, double likely, std::int32_t most, std::int32_t children,
    std::int32_t *new_parents, Token *new_tokens, double *new_probs) noexcept {
    try {
        const Tree tree{size, parents, tokens, chances};
        std::priority_queue<Waiting> waiting;
        for (std::int32_t i = 0; i < n_asked; i++)
            if (chances[asked[i]] >= likely) waiting.push(tree.waiting(asked[i]));
        std::vector<Draft> drafts;
        while (!waiting.empty() && std::int64_t(drafts.size()) < most) {
            const Waiting one = waiting.top();
            waiting.pop();
            if (std::int64_t(one.path.size()) - 1 >= deepest) continue;
            const std::vector<Candidate> found = indices[one.line]->following(one.path);
            for (std::size_t i = 0; i < std::min(found.size(), std::size_t(children)); i++) {
                const double chance = one.chance * found[i].prob;
                if (chance < least_chance) break;
                const std::int32_t node = size + std::int32_t(drafts.size());
                drafts.push_back({one.node, found[i].token, found[i].prob});
                if (chance < likely || tree.has(one.node, found[i].token)) continue;
                Waiting next{chance, node, one.line, one.path};
                next.path.push_back(found[i].token);
                waiting.push(std::move(next));
            }
        }
        std::int32_t added = 0;
        for (const Draft &draft : by_breadth(drafts, size)) {
            new_parents[added] = draft.parent;
            new_tokens[added] = draft.token;
            new_probs[added++] = draft.prob;
        }
        return added;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}
