//! Slices of exhaustive tests: a run covers one of several, all of them `make test FULL=1`.

/// The part of an exhaustive test that this run covers: cases with a number equal to `index` modulo `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Index of the part, from 0.
    pub index: u64,
    /// Number of parts.
    pub count: u64,
}

impl Slice {
    /// Returns one of `count` slices, by the number in the environment variable `APIARY_SLICE`; without one,
    /// everything.
    ///
    /// # Panics
    /// If the variable is no number, or `count` is 0.
    pub fn of(count: u64) -> Slice {
        Slice::chosen(std::env::var("APIARY_SLICE").ok().as_deref(), count)
    }

    fn chosen(seed: Option<&str>, count: u64) -> Slice {
        match seed.filter(|seed| !seed.is_empty()) {
            Some(seed) => {
                let seed: u64 = seed.parse().unwrap_or_else(|_| panic!("APIARY_SLICE={seed}: not a number"));
                Slice { index: seed % count, count }
            }
            None => Slice { index: 0, count: 1 },
        }
    }

    /// Whether the run covers the case with this number.
    pub fn covers(self, case: u64) -> bool {
        case % self.count == self.index
    }
}

#[cfg(test)]
mod tests {
    use super::Slice;

    #[test]
    fn each_case_is_in_one_slice_and_without_a_seed_in_the_only_one() {
        for case in 0..20 {
            let covering = (0..3u64).filter(|seed| Slice::chosen(Some(&seed.to_string()), 3).covers(case));
            assert_eq!(covering.count(), 1, "{case}");
            assert!(Slice::chosen(None, 3).covers(case) && Slice::chosen(Some(""), 3).covers(case));
        }
        assert_eq!(Slice::chosen(Some("3735928559"), 4), Slice { index: 3, count: 4 });
    }

    #[test]
    #[should_panic(expected = "APIARY_SLICE=second: not a number")]
    fn a_seed_that_is_no_number_is_named() {
        Slice::chosen(Some("second"), 3);
    }
}
