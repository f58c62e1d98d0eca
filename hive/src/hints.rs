//! Names that are close to one another: "did you mean".

use strsim::levenshtein;

/// Returns the candidate nearest to `word`, if one is similar enough.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = 1 + word.len() / 8;
    candidates
        .into_iter()
        .filter(|candidate| *candidate != word && candidate.len().abs_diff(word.len()) <= limit)
        .map(|candidate| (levenshtein(word, candidate), candidate))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the distance of two type names, smaller is closer; `None` if they are not similar.
pub(crate) fn likeness(want: &str, have: &str) -> Option<usize> {
    let (want, have) = (bare(want), bare(have));
    if want == have {
        return Some(0);
    }
    if have.contains(want) || want.contains(have) {
        return Some(1);
    }
    Some(levenshtein(have, want)).filter(|d| *d <= 1 + want.len() / 4)
}

/// Returns a type name without `dyn` and auto traits: keys that differ only in these look like one trait to a reader.
fn bare(name: &str) -> &str {
    let name = name.strip_prefix("dyn ").unwrap_or(name);
    name.split(" + ").next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let known = ["cluster-pool-cidr", "cluster-name", "debug"];
        assert_eq!(nearest("cluster-pool-cdir", known), Some("cluster-pool-cidr"));
        assert_eq!(nearest("debag", known), Some("debug"));
        assert_eq!(nearest("enable-ipv4", known), None);
        assert_eq!(nearest("enable-metrics", ["hubble-metrics"]), None);
    }

    #[test]
    fn auto_traits_do_not_hide_a_likeness() {
        assert_eq!(likeness("dyn Kv", "dyn Kv + Send"), Some(0));
        assert_eq!(likeness("Pool", "dyn Pools"), Some(1));
        assert_eq!(likeness("Pool", "Route"), None);
    }
}
