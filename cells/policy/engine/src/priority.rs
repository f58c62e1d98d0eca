//! Computes the precedence of rows from their tier and priority.

/// The highest priority; lower numbers take precedence over higher ones.
pub(crate) const FIRST: u32 = 0;

/// A class of rules; rules of an earlier tier take precedence over those of a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tier {
    /// Rules of policy objects.
    Normal,
    /// Rows that the engine adds: the allow of all traffic where no rule denies by default, the allow of the host.
    Default,
}

/// Returns the first priority of a tier, given the number of different priorities that each tier uses. A tier reserves
/// a multiple of 10, so that an added priority seldom renumbers the tiers after it.
pub(crate) fn first_priority(tier: Tier, used: [u32; 2]) -> u32 {
    used.iter().take(tier as usize).map(|levels| levels.next_multiple_of(10)).sum()
}

/// Returns the precedence of a row: 24 bits of inverted priority (a lower number takes precedence), then 8 bits by
/// which a deny takes precedence over an allow of the same priority.
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
