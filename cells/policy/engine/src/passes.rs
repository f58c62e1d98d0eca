//! The effect of Pass entries: for traffic that a tier passes on, rules of the next tiers take effect at the place of
//! the Pass, before the remaining rules of its tier.
//!
//! No row is a Pass. Its effect is in the precedence of rows: those of rules inside its traffic are raised to the
//! numbers after its own, and rules that cover more than its traffic get additional rows for the part inside it.

use std::collections::BTreeMap;

use crate::model::Tier;
use crate::priority::{Levels, precedence};
use crate::rows::{L4, Row};

/// The number of tiers that can have a Pass.
const PASSING: usize = Tier::Default as usize;
const NONE: u32 = u32::MAX;

/// An allow or deny of some traffic of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) l4: L4,
    pub(crate) tier: Tier,
    /// The number of its priority.
    pub(crate) number: u32,
    pub(crate) deny: bool,
    /// The priority of its redirect; 0 for none.
    pub(crate) redirect: u8,
    pub(crate) proxy_port: u16,
    pub(crate) auth: u8,
    pub(crate) origin: u32,
}

impl Candidate {
    /// Returns the row for its traffic.
    pub(crate) fn row(&self) -> Row {
        let Candidate { number, deny, redirect, proxy_port, auth, origin, .. } = *self;
        Row { deny, precedence: precedence(number, deny, redirect), proxy_port, auth, origin }
    }
}

/// The rules for a peer: allows and denies, and Passes by their traffic.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerRules {
    pub(crate) candidates: Vec<Candidate>,
    passes: BTreeMap<L4, Best>,
}

/// The first Pass of each tier, by the number of its priority.
type Best = [u32; PASSING];

impl PeerRules {
    pub(crate) fn add_pass(&mut self, l4: L4, tier: Tier, number: u32) {
        if let Some(first) = self.passes.entry(l4).or_insert([NONE; PASSING]).get_mut(tier as usize) {
            *first = number.min(*first);
        }
    }

    /// Returns the candidates with their Passes applied. `any` are the rules for any peer, which have rows of their own:
    /// a candidate of these is returned only where a Pass for this peer changes it.
    pub(crate) fn passed(self, any: &PeerRules, levels: &Levels) -> Vec<Candidate> {
        let mut all = self.passes.clone();
        for (l4, more) in &any.passes {
            let best = all.entry(*l4).or_insert([NONE; PASSING]);
            best.iter_mut().zip(more).for_each(|(best, more)| *best = (*best).min(*more));
        }
        if all.is_empty() {
            return self.candidates;
        }
        let mut found = Vec::new();
        for candidate in &self.candidates {
            found.extend(raised(candidate, &all, levels));
        }
        if !self.passes.is_empty() {
            for candidate in &any.candidates {
                let differs =
                    |at: &Candidate| number_at(candidate, at.l4, &any.passes, levels) != Some(at.number);
                found.extend(raised(candidate, &all, levels).filter(differs));
            }
        }
        found
    }
}

/// Returns a candidate with the number that it has for its whole traffic, and for each part that a Pass changes.
fn raised<'a>(
    candidate: &'a Candidate,
    passes: &'a BTreeMap<L4, Best>,
    levels: &'a Levels,
) -> impl Iterator<Item = Candidate> + 'a {
    let whole = candidate.l4;
    let number = move |l4| number_at(candidate, l4, passes, levels);
    let inside = inside(whole, passes).filter(move |part| *part != whole);
    let changed = inside.filter(move |part| {
        let broader = covering(*part).filter(|key| key.bits < part.bits && whole.covers(*key));
        let outer = broader.filter(|key| *key == whole || passes.contains_key(key)).last();
        number(*part) != number(outer.unwrap_or(whole))
    });
    let at = move |l4| number(l4).map(|number| Candidate { l4, number, ..*candidate });
    std::iter::once(whole).chain(changed).filter_map(at)
}

/// Returns the number of a candidate for a part of its traffic; `None` if a Pass of its own tier takes precedence.
fn number_at(candidate: &Candidate, part: L4, passes: &BTreeMap<L4, Best>, levels: &Levels) -> Option<u32> {
    let mut best = [NONE; PASSING];
    for found in covering(part).filter_map(|key| passes.get(&key)) {
        best.iter_mut().zip(found).for_each(|(best, found)| *best = (*best).min(*found));
    }
    let tier = candidate.tier as usize;
    if best.get(tier).is_some_and(|pass| *pass < candidate.number) {
        return None;
    }
    let earlier = (0..tier).rev().filter(|tier| best[*tier] != NONE);
    Some(earlier.fold(candidate.number, |number, tier| levels.passed(tier, best[tier], number)))
}

/// Iterates over the keys that cover a key, itself included, the broadest first.
fn covering(key: L4) -> impl Iterator<Item = L4> {
    [0].into_iter().chain(8..=key.bits).map(move |bits| key.truncated(bits))
}

/// Iterates over the Passes inside some traffic.
fn inside(whole: L4, passes: &BTreeMap<L4, Best>) -> impl Iterator<Item = L4> + '_ {
    let (first, last) = match whole.bits {
        0 => (L4::ALL, L4 { protocol: u8::MAX, port: u16::MAX, bits: u8::MAX }),
        bits => {
            let rest = u16::MAX.checked_shr(u32::from(bits) - 8).unwrap_or(0);
            let last = L4 { port: whole.port | rest, bits: u8::MAX, ..whole };
            (L4 { bits: 0, ..whole }, last)
        }
    };
    passes.range(first..=last).map(|(l4, _)| *l4).filter(move |l4| whole.covers(*l4))
}
