//! The policy entries that use a selector, counted; equal ones of many selectors are one value.

use std::sync::{Arc, OnceLock, Weak};

use crate::counts::Counts;
use crate::selections::SelectorId;

/// The labels of entries, sorted.
pub(crate) type EntryLabels = Arc<[Arc<[String]>]>;

/// The entries that use a selector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses {
    /// The number of entries.
    pub(crate) count: usize,
    /// The subjects of the entries, if it is a selector of peers.
    pub(crate) subjects: Counts<SelectorId>,
    /// The labels of the entries, sorted, with the number of entries of each.
    labels: Counts<Arc<[String]>>,
    /// The labels without the numbers, once they have been asked for.
    listed: OnceLock<EntryLabels>,
}

/// An entry that uses a selector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use<'a> {
    /// Its subject, if it uses a selector of peers.
    pub(crate) subject: Option<SelectorId>,
    /// Its labels.
    pub(crate) labels: &'a Arc<[String]>,
}

impl Uses {
    /// Returns the labels of the entries, sorted; the same list until they change. It is `last` if that is equal.
    pub(crate) fn labels(&self, last: Option<&EntryLabels>) -> EntryLabels {
        let shared = || last.filter(|last| self.labels.items().eq(last.iter())).cloned();
        self.listed.get_or_init(|| shared().unwrap_or_else(|| self.labels.items().cloned().collect())).clone()
    }

    fn change(&mut self, change: Change, entry: Use<'_>) {
        let Use { subject, labels } = entry;
        let listed = match change {
            Change::Add => {
                self.count += 1;
                subject.iter().for_each(|subject| _ = self.subjects.add(subject));
                self.labels.add(labels)
            }
            Change::Remove => {
                self.count -= 1;
                subject.iter().for_each(|subject| _ = self.subjects.remove(subject));
                self.labels.remove(labels)
            }
        };
        if listed {
            self.listed = OnceLock::new();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// The last change of shared uses: an entry changes the same uses of thousands of selectors, one after the other, and they
/// remain shared.
#[derive(Debug, Default)]
pub(crate) struct Sharing(Option<Last>);

/// Weak, so that uses of one selector are not copied by each change: a value is never changed while it is here.
#[derive(Debug)]
struct Last {
    change: Change,
    subject: Option<SelectorId>,
    labels: Weak<[String]>,
    /// The uses before; `None` for the first use.
    before: Option<Weak<Uses>>,
    after: Weak<Uses>,
}

impl Sharing {
    /// Returns the uses of a selector whose first use this is.
    pub(crate) fn first(&mut self, entry: Use<'_>) -> Arc<Uses> {
        self.changed(Change::Add, None, entry)
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, uses: &mut Arc<Uses>, entry: Use<'_>) {
        self.change(Change::Add, uses, entry);
    }

    /// Removes an entry, which is not the only one.
    pub(crate) fn remove(&mut self, uses: &mut Arc<Uses>, entry: Use<'_>) {
        self.change(Change::Remove, uses, entry);
    }

    fn change(&mut self, change: Change, uses: &mut Arc<Uses>, entry: Use<'_>) {
        let is_known = self.0.as_ref().is_some_and(|last| last.is_of(Some(uses)));
        match Arc::strong_count(uses) > 1 || is_known {
            true => *uses = self.changed(change, Some(uses), entry),
            false => Arc::make_mut(uses).change(change, entry),
        }
    }

    fn changed(&mut self, change: Change, before: Option<&Arc<Uses>>, entry: Use<'_>) -> Arc<Uses> {
        if let Some(after) = self.0.as_ref().and_then(|last| last.same(change, before, entry)) {
            return after;
        }
        let mut after = before.map_or_else(Uses::default, |before| Uses::clone(before));
        after.change(change, entry);
        let after = Arc::new(after);
        self.0 = Some(Last {
            change,
            subject: entry.subject,
            labels: Arc::downgrade(entry.labels),
            before: before.map(Arc::downgrade),
            after: Arc::downgrade(&after),
        });
        after
    }
}

impl Last {
    /// Whether it is a change of these uses.
    fn is_of(&self, before: Option<&Arc<Uses>>) -> bool {
        self.before.as_ref().map(Weak::as_ptr) == before.map(Arc::as_ptr)
    }

    /// Returns the uses after the same change; `None` if it is another one.
    fn same(&self, change: Change, before: Option<&Arc<Uses>>, entry: Use<'_>) -> Option<Arc<Uses>> {
        let is_same = self.change == change
            && self.is_of(before)
            && self.subject == entry.subject
            && std::ptr::addr_eq(self.labels.as_ptr(), Arc::as_ptr(entry.labels));
        is_same.then(|| self.after.upgrade()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_the_same_entries_share_their_uses() {
        let labels: [Arc<[String]>; 2] = ["a", "b"].map(|label| [label.to_owned()].into());
        let entry = |at: usize| Use { subject: Some(SelectorId::FIRST), labels: &labels[at] };
        let mut sharing = Sharing::default();
        let mut all: Vec<Arc<Uses>> = (0..5).map(|_| sharing.first(entry(0))).collect();
        let are_shared = |all: &[Arc<Uses>]| all.iter().all(|uses| Arc::ptr_eq(uses, &all[0]));
        assert!(are_shared(&all) && all[0].count == 1);
        let own = sharing.first(entry(1));
        for (at, count) in [(1, 2), (0, 3)] {
            all.iter_mut().for_each(|uses| sharing.add(uses, entry(at)));
            assert!(are_shared(&all));
            assert_eq!((all[0].count, all[0].labels(None).len()), (count, 2));
        }
        sharing.remove(&mut all[0], entry(1));
        assert_eq!((all[0].count, &*all[0].labels(None)), (2, &labels[..1]));
        assert_eq!((all[1].count, all[1].labels(None).len()), (3, 2), "another selector's");
        all[1..].iter_mut().for_each(|uses| sharing.remove(uses, entry(1)));
        assert!(are_shared(&all));
        assert_eq!((own.count, &*own.labels(None)), (1, &labels[1..]));
    }

    #[test]
    fn uses_of_one_selector_are_changed_in_place() {
        let labels: Arc<[String]> = [].into();
        let entry = Use { subject: None, labels: &labels };
        let mut sharing = Sharing::default();
        let mut uses = sharing.first(entry);
        (1..100).for_each(|_| sharing.add(&mut uses, entry));
        let weak = Arc::as_ptr(&uses);
        sharing.add(&mut uses, entry);
        assert_eq!((uses.count, Arc::as_ptr(&uses)), (101, weak));
    }
}
