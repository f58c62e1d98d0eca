//! From tiers to the precedence of rows.

/// Precedence of a row that nothing overrules: an allow of the first priority.
pub(crate) const FIRST: u32 = 0;

/// A class of rules; those of an earlier tier decide before those of a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tier {
    /// Rules of policy objects.
    Normal,
    /// Rows that the engine adds: what is let through where nothing is denied, the host.
    Default,
}

/// Where the priorities of each tier begin, from how many different priorities each tier uses. A tier takes a multiple
/// of 10, so that a further priority seldom moves those after it.
pub(crate) fn first_priority(tier: Tier, used: [u32; 2]) -> u32 {
    used.iter().take(tier as usize).map(|levels| levels.next_multiple_of(10)).sum()
}

/// The precedence of a row: 24 bits of priority, the lower number the higher, then the kind of row.
pub(crate) fn precedence(priority: u32, deny: bool) -> u32 {
    const LOWEST: u32 = 0xff_ffff;
    let kind = if deny { 255 } else { 1 };
    (LOWEST - priority.min(LOWEST)) << 8 | kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_follow_each_other_in_tens() {
        assert_eq!(first_priority(Tier::Normal, [1, 0]), 0);
        assert_eq!(first_priority(Tier::Default, [1, 0]), 10);
        assert_eq!(first_priority(Tier::Default, [11, 0]), 20);
        assert_eq!(precedence(0, true), 0xffff_ffff);
        assert_eq!(precedence(0, false), 0xffff_ff01);
        assert_eq!(precedence(10, false), 0xffff_f501);
        assert!(precedence(0, false) > precedence(1, true));
    }
}
