//! Slices that are to be written.

use std::collections::{BTreeSet, HashMap};

use k8s_types::SmolStr;
use tokio::time::{Duration, Instant};

/// How long a slice waits for further changes.
const DELAY: Duration = Duration::from_millis(500);

/// Slices by the time from which they may be written; those of namespaces with priority first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// When a slice is due, and whether its namespace has priority.
    slices: HashMap<SmolStr, (Instant, bool)>,
    /// With priority, and without.
    due: [BTreeSet<(Instant, SmolStr)>; 2],
}

impl Queue {
    /// Adds a slice. One that waits already keeps its time.
    pub(crate) fn add(&mut self, slice: &SmolStr, has_priority: bool, now: Instant) {
        let at = match self.slices.get(slice) {
            Some((_, priority)) if *priority >= has_priority => return,
            Some((at, _)) => *at,
            None => now + DELAY,
        };
        self.due[1].remove(&(at, slice.clone()));
        self.slices.insert(slice.clone(), (at, has_priority));
        self.due[usize::from(!has_priority)].insert((at, slice.clone()));
    }

    /// Returns when the next slice is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.iter().filter_map(|due| due.first()).map(|(at, _)| *at).min()
    }

    /// Removes and returns a slice that is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<SmolStr> {
        let due = self.due.iter_mut().find(|due| due.first().is_some_and(|(at, _)| *at <= now))?;
        let (_, slice) = due.pop_first()?;
        self.slices.remove(&slice);
        Some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_priority_are_first_and_each_waits_once() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let names = ["a", "b", "c"].map(SmolStr::new_static);
        queue.add(&names[0], false, ms(0));
        queue.add(&names[1], true, ms(100));
        queue.add(&names[0], false, ms(400));
        queue.add(&names[1], false, ms(400));
        assert_eq!(queue.next(), Some(ms(500)));
        assert_eq!(queue.take(ms(499)), None);
        assert_eq!(queue.take(ms(600)), Some(names[1].clone()));
        assert_eq!(queue.take(ms(600)), Some(names[0].clone()));
        assert_eq!((queue.take(ms(9000)), queue.next()), (None, None));

        // One of a namespace that gets priority meanwhile keeps its time.
        queue.add(&names[2], false, ms(1000));
        queue.add(&names[2], true, ms(1300));
        queue.add(&names[0], false, ms(900));
        assert_eq!(queue.take(ms(1500)), Some(names[2].clone()));
        assert_eq!((queue.take(ms(1500)), queue.next()), (Some(names[0].clone()), None));
    }
}
