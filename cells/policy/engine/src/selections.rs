//! Selections: the identities that each selector in use selects, updated incrementally.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::identities::{Identities, Identity};
use crate::model::Subject;
use crate::selector::Selector;

/// The host's identity.
pub const HOST: u32 = 1;

/// The id of a selector; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SelectorId(u64);

/// A predicate on identities: a selector of peers, or of the subjects of a rule.
pub(crate) trait Selects: Eq + Hash {
    /// Whether the identity is selected.
    fn selects(&self, id: u32, identity: &Identity) -> bool;
    /// Returns the selector inside.
    fn selector(&self) -> &Selector;
}

impl Selects for Selector {
    fn selects(&self, _: u32, identity: &Identity) -> bool {
        identity.is_selected_by(self)
    }

    fn selector(&self) -> &Selector {
        self
    }
}

/// A rule applies to endpoints or to the host, never to both: matching labels do not suffice.
impl Selects for Subject {
    fn selects(&self, id: u32, identity: &Identity) -> bool {
        let wanted = match self {
            Subject::Endpoints(_) => id != HOST,
            Subject::Node(_) => id == HOST,
        };
        wanted && identity.is_selected_by(self.selector())
    }

    fn selector(&self) -> &Selector {
        match self {
            Subject::Endpoints(selector) | Subject::Node(selector) => selector,
        }
    }
}

/// A selector with the identities that it selects.
#[derive(Debug)]
pub(crate) struct Selection<S> {
    pub(crate) selector: Arc<S>,
    /// Its text, as the API shows it.
    pub(crate) text: Arc<str>,
    /// The selected identities, sorted for binary search.
    pub(crate) identities: Vec<u32>,
    /// Reference count: the number of policy entries that use it.
    pub(crate) users: usize,
}

impl<S> Selection<S> {
    /// Whether the identity is selected. Logarithmic.
    pub(crate) fn has(&self, identity: u32) -> bool {
        self.identities.binary_search(&identity).is_ok()
    }
}

/// All selectors in use.
#[derive(Debug)]
pub(crate) struct Selections<S> {
    ids: HashMap<Arc<S>, SelectorId>,
    selections: BTreeMap<SelectorId, Selection<S>>,
    next: u64,
    /// Texts of selectors whose users or selection have changed since the last [`take_changed`](Self::take_changed).
    changed: BTreeSet<Arc<str>>,
}

impl<S> Default for Selections<S> {
    fn default() -> Self {
        Selections { ids: HashMap::new(), selections: BTreeMap::new(), next: 0, changed: BTreeSet::new() }
    }
}

impl<S: Selects + Clone> Selections<S> {
    /// Increments the selector's reference count. The first reference matches all candidate identities.
    pub(crate) fn acquire(&mut self, selector: &S, identities: &Identities) -> SelectorId {
        if let Some(id) = self.ids.get(selector) {
            if let Some(selection) = self.selections.get_mut(id) {
                selection.users += 1;
                self.changed.insert(selection.text.clone());
            }
            return *id;
        }
        let id = SelectorId(self.next);
        self.next += 1;
        let shared = Arc::new(selector.clone());
        let selected = identities
            .candidates(selector.selector())
            .filter(|(id, identity)| selector.selects(*id, identity))
            .map(|(id, _)| id)
            .collect();
        let text: Arc<str> = selector.selector().key().into();
        self.changed.insert(text.clone());
        let selection = Selection { selector: shared.clone(), text, identities: selected, users: 1 };
        self.ids.insert(shared, id);
        self.selections.insert(id, selection);
        id
    }

    /// Decrements the selector's reference count; removes the selector at zero.
    pub(crate) fn release(&mut self, id: SelectorId) {
        let Some(selection) = self.selections.get_mut(&id) else { return };
        selection.users -= 1;
        self.changed.insert(selection.text.clone());
        if selection.users == 0 {
            self.ids.remove(&selection.selector);
            self.selections.remove(&id);
        }
    }

    /// Updates all selections after a change of an identity, `None` if it was removed. Returns the selectors that
    /// select it now or did before.
    pub(crate) fn update(&mut self, id: u32, identity: Option<&Identity>) -> Vec<SelectorId> {
        let mut touched = Vec::new();
        for (selector_id, selection) in &mut self.selections {
            let selected = identity.is_some_and(|identity| selection.selector.selects(id, identity));
            match (selection.identities.binary_search(&id), selected) {
                (Err(_), false) => continue,
                (Ok(_), true) => {}
                (Ok(at), false) => {
                    selection.identities.remove(at);
                    self.changed.insert(selection.text.clone());
                }
                (Err(at), true) => {
                    selection.identities.insert(at, id);
                    self.changed.insert(selection.text.clone());
                }
            }
            touched.push(*selector_id);
        }
        touched
    }

    /// Returns the texts of selectors that have changed since the last call, removed ones included.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the number of selectors in use.
    pub(crate) fn len(&self) -> usize {
        self.selections.len()
    }

    /// Returns the identities that the selector selects, in order; none if it is no longer in use.
    pub(crate) fn of(&self, id: SelectorId) -> &[u32] {
        self.selections.get(&id).map_or(&[], |selection| &selection.identities)
    }

    /// Returns the selector with its selection.
    pub(crate) fn get(&self, id: SelectorId) -> Option<&Selection<S>> {
        self.selections.get(&id)
    }

    /// Iterates over all selectors, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SelectorId, &Selection<S>)> {
        self.selections.iter().map(|(id, selection)| (*id, selection))
    }
}
