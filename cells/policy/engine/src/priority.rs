//! Numbers the priorities of an endpoint's rules over all tiers, and computes the precedence of rows.

use std::collections::BTreeMap;

use crate::model::Tier;

/// The number of tiers.
const TIERS: usize = 4;
/// The number of priorities that fit into a precedence.
const CAPACITY: u64 = 1 << 24;

/// The priorities of a direction's rules, numbered in the order of precedence from 0.
///
/// A tier occupies a multiple of 10 numbers, so that an added priority seldom renumbers the tiers after it. After a
/// priority with a Pass, as many numbers stay free as the next tiers occupy: rules of these take effect there for the
/// traffic that is passed to them, before the remaining rules of the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    numbers: BTreeMap<(Tier, u32), u32>,
    /// First number of each tier, and the end of the last one.
    starts: [u32; TIERS + 1],
}

impl Levels {
    /// Numbers priorities, given with their tiers and whether one of their rules is a Pass. Returns `None` if they do
    /// not fit into a precedence.
    pub(crate) fn new(used: impl IntoIterator<Item = (Tier, u32, bool)>) -> Option<Levels> {
        let mut passes: BTreeMap<(Tier, u32), bool> = BTreeMap::new();
        for (tier, priority, pass) in used {
            *passes.entry((tier, priority)).or_default() |= pass;
        }
        let mut sizes = [0u64; TIERS + 1];
        for tier in (0..TIERS).rev() {
            let of_tier = passes.iter().filter(|((of, _), _)| *of as usize == tier);
            let (count, passing) = of_tier.fold((0u64, 0), |(n, p), (_, pass)| (n + 1, p + u64::from(*pass)));
            sizes[tier] = match count {
                0 => sizes[tier + 1],
                _ => (passing + 1)
                    .checked_mul(sizes[tier + 1])
                    .and_then(|room| room.checked_add(count.next_multiple_of(10)))
                    .filter(|size| *size <= CAPACITY)?,
            };
        }
        let mut starts = [0; TIERS + 1];
        for tier in 0..TIERS {
            starts[tier + 1] = starts[tier] + (sizes[tier] - sizes[tier + 1]) as u32;
        }
        let mut next = starts;
        let numbers = passes.into_iter().map(|((tier, priority), pass)| {
            let next = &mut next[tier as usize];
            let number = *next;
            *next += 1 + if pass { sizes[tier as usize + 1] as u32 } else { 0 };
            ((tier, priority), number)
        });
        Some(Levels { numbers: numbers.collect(), starts })
    }

    /// Returns the number of a priority.
    pub(crate) fn number(&self, tier: Tier, priority: u32) -> u32 {
        self.numbers.get(&(tier, priority)).copied().unwrap_or_default()
    }

    /// Returns the number of a rule of the tiers after `tier` for traffic that a Pass of `tier` passes to them.
    pub(crate) fn passed(&self, tier: usize, pass: u32, number: u32) -> u32 {
        pass + 1 + (number - self.starts[tier + 1])
    }
}

/// Returns the precedence of a row: 24 bits of inverted priority (a lower number takes precedence), then 8 bits by
/// which, of the rows of one priority, denies take precedence over redirects, those of a lower `redirect` first, and
/// redirects over other allows (`redirect` 0).
pub(crate) fn precedence(number: u32, deny: bool, redirect: u8) -> u32 {
    const LOWEST: u32 = 0xff_ffff;
    let kind = match (deny, redirect) {
        (true, _) => u8::MAX,
        (false, 0) => 1,
        (false, redirect) => u8::MAX - redirect,
    };
    (LOWEST - number.min(LOWEST)) << 8 | u32::from(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_follow_each_other_in_tens() {
        let levels = Levels::new([(Tier::Normal, 0, false), (Tier::Default, 0, false)]).unwrap();
        assert_eq!((levels.number(Tier::Normal, 0), levels.number(Tier::Default, 0)), (0, 10));
        let eleven = (0..11).map(|priority| (Tier::Admin, priority, false));
        let levels = Levels::new(eleven.chain([(Tier::Default, 0, false)])).unwrap();
        assert_eq!((levels.number(Tier::Admin, 10), levels.number(Tier::Default, 0)), (10, 20));
        assert_eq!(precedence(0, true, 0), 0xffff_ffff);
        assert_eq!(precedence(0, false, 0), 0xffff_ff01);
        assert_eq!(precedence(0, false, 101), 0xffff_ff9a);
        assert_eq!(precedence(10, false, 0), 0xffff_f501);
        assert!(precedence(0, false, 0) > precedence(1, true, 0));
    }

    #[test]
    fn a_pass_is_followed_by_room_for_the_next_tiers() {
        let used = [(Tier::Admin, 7, true), (Tier::Admin, 9, false), (Tier::Normal, 0, false)];
        let levels = Levels::new(used.into_iter().chain([(Tier::Default, 0, false)])).unwrap();
        // The normal tier and the default one occupy ten numbers each.
        assert_eq!((levels.number(Tier::Admin, 7), levels.number(Tier::Admin, 9)), (0, 21));
        assert_eq!((levels.number(Tier::Normal, 0), levels.number(Tier::Default, 0)), (30, 40));
        assert_eq!((levels.passed(0, 0, 30), levels.passed(0, 0, 40)), (1, 11));
    }

    #[test]
    fn priorities_that_do_not_fit_are_refused() {
        let used = |count| {
            let of = move |tier| (0..count).map(move |priority| (tier, priority, true));
            of(Tier::Admin).chain(of(Tier::Baseline)).chain([(Tier::Default, 0, false)])
        };
        assert!(Levels::new(used(1000)).is_some());
        assert_eq!(Levels::new(used(1500)), None);
    }
}
