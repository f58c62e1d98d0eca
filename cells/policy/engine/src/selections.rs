//! Who is selected: for each selector in use the identities that it selects, kept up to date.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use crate::identities::{Identities, Identity};
use crate::model::Subject;
use crate::selector::Selector;

/// The number of the host's identity.
pub const HOST: u32 = 1;

/// A selector's number; never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SelectorId(u64);

/// What selects identities: a selector of peers, or of the endpoints that a rule is about.
pub(crate) trait Selects: Eq + Hash {
    /// Whether the identity is selected.
    fn selects(&self, id: u32, identity: &Identity) -> bool;
    /// The selector inside.
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

/// Rules are about endpoints or about the host, never both.
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

/// A selector with those it selects.
#[derive(Debug)]
pub(crate) struct Selection<S> {
    pub(crate) selector: Arc<S>,
    /// Its text, as the API shows it.
    pub(crate) text: Arc<str>,
    /// Sorted.
    pub(crate) identities: Vec<u32>,
    /// How many entries of policies use it.
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
    /// Texts of selectors whose users or selection have changed since somebody has asked.
    changed: BTreeSet<Arc<str>>,
}

impl<S> Default for Selections<S> {
    fn default() -> Self {
        Selections { ids: HashMap::new(), selections: BTreeMap::new(), next: 0, changed: BTreeSet::new() }
    }
}

impl<S: Selects + Clone> Selections<S> {
    /// Counts one more user of the selector. The first one costs a match of every identity that it may select.
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

    /// Counts one user less; the last one forgets the selector.
    pub(crate) fn release(&mut self, id: SelectorId) {
        let Some(selection) = self.selections.get_mut(&id) else { return };
        selection.users -= 1;
        self.changed.insert(selection.text.clone());
        if selection.users == 0 {
            self.ids.remove(&selection.selector);
            self.selections.remove(&id);
        }
    }

    /// Brings all selections up to date with an identity, `None` when it is gone; gives those selectors that select it
    /// now or did before.
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

    /// The texts of selectors that have changed since the last call, those that are gone among them.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.selections.len()
    }

    /// The identities that the selector selects, in order; nobody if it is not in use any more.
    pub(crate) fn of(&self, id: SelectorId) -> &[u32] {
        self.selections.get(&id).map_or(&[], |selection| &selection.identities)
    }

    /// The selector with its selection.
    pub(crate) fn get(&self, id: SelectorId) -> Option<&Selection<S>> {
        self.selections.get(&id)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SelectorId, &Selection<S>)> {
        self.selections.iter().map(|(id, selection)| (*id, selection))
    }
}
