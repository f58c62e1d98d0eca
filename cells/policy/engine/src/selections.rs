//! Selections: the identities that each selector in use selects, updated incrementally.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::num::NonZeroU64;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use smallvec::SmallVec;

use crate::density::Density;
use crate::identities::{Identities, Identity};
use crate::model::Subject;
use crate::selector::Selector;
use crate::selector_index::SelectorIndex;
use crate::uses::{Sharing, Use, Uses};

/// The host's identity.
pub const HOST: u32 = 1;

/// The id of a selector; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SelectorId(NonZeroU64);

impl SelectorId {
    pub(crate) const FIRST: SelectorId = SelectorId(NonZeroU64::MIN);
    pub(crate) const LAST: SelectorId = SelectorId(NonZeroU64::MAX);
}

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
    pub(crate) identities: IdentityIds,
    /// The policy entries that use it. The thousands of prefixes of a rule share one value.
    pub(crate) uses: Arc<Uses>,
}

/// Sorted ids of identities; a prefix selects one or two.
pub type IdentityIds = SmallVec<[u32; 2]>;

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
    /// Boxed: a map of large values is half empty.
    selections: HashMap<SelectorId, Box<Selection<S>>>,
    index: SelectorIndex,
    /// By text: a selector of nodes and one of endpoints may have the same.
    by_text: BTreeSet<(Arc<str>, SelectorId)>,
    /// The exceptions that selectors name, with the number of selectors that name each. Other prefixes are in the index.
    exceptions: BTreeMap<IpNetwork, usize>,
    /// Prefixes that selectors have ceased to name since the last [`take_unnamed`](Self::take_unnamed).
    unnamed: BTreeSet<IpNetwork>,
    /// The number of selectors of CIDR groups.
    of_cidr_groups: usize,
    /// The id of the next selector.
    next: SelectorId,
    sharing: Sharing,
    density: Density,
    /// Texts of selectors whose users or selection have changed since the last [`take_changed`](Self::take_changed).
    changed: BTreeSet<Arc<str>>,
}

impl<S> Default for Selections<S> {
    fn default() -> Self {
        Selections {
            ids: HashMap::new(),
            selections: HashMap::new(),
            index: SelectorIndex::default(),
            by_text: BTreeSet::new(),
            exceptions: BTreeMap::new(),
            unnamed: BTreeSet::new(),
            of_cidr_groups: 0,
            next: SelectorId::FIRST,
            sharing: Sharing::default(),
            density: Density::default(),
            changed: BTreeSet::new(),
        }
    }
}

impl<S: Selects + Clone> Selections<S> {
    /// Increments the selector's reference count, for an entry with these labels and, of selectors of peers, this
    /// subject. The first reference matches all candidate identities.
    pub(crate) fn acquire(
        &mut self,
        selector: &S,
        subject: Option<SelectorId>,
        labels: &Arc<[String]>,
        identities: &Identities,
    ) -> SelectorId {
        if let Some(id) = self.ids.get(selector) {
            if let Some(selection) = self.selections.get_mut(id) {
                self.sharing.add(&mut selection.uses, Use { subject, labels });
                self.changed.insert(selection.text.clone());
            }
            return *id;
        }
        let id = self.next;
        // No process lives through as many selectors.
        self.next = SelectorId(id.0.saturating_add(1));
        let shared = Arc::new(selector.clone());
        let selected = identities
            .candidates(selector.selector())
            .filter(|(id, identity)| selector.selects(*id, identity))
            .map(|(id, _)| id)
            .collect();
        let text: Arc<str> = selector.selector().key().into();
        self.changed.insert(text.clone());
        self.by_text.insert((text.clone(), id));
        self.index.insert(id, selector.selector());
        for prefix in selector.selector().exceptions() {
            *self.exceptions.entry(prefix).or_default() += 1;
        }
        self.of_cidr_groups += usize::from(selector.selector().is_of_cidr_groups());
        let uses = self.sharing.first(Use { subject, labels });
        let selection = Selection { selector: shared.clone(), text, identities: selected, uses };
        self.ids.insert(shared, id);
        self.selections.insert(id, Box::new(selection));
        id
    }

    /// Decrements the selector's reference count, for an entry with these labels and this subject; removes the selector
    /// at zero.
    pub(crate) fn release(&mut self, id: SelectorId, subject: Option<SelectorId>, labels: &Arc<[String]>) {
        let Some(selection) = self.selections.get_mut(&id) else { return };
        self.changed.insert(selection.text.clone());
        if selection.uses.count > 1 {
            self.sharing.remove(&mut selection.uses, Use { subject, labels });
            return;
        }
        let selector = selection.selector.selector();
        self.index.remove(id, selector);
        self.by_text.remove(&(selection.text.clone(), id));
        self.of_cidr_groups -= usize::from(selector.is_of_cidr_groups());
        for prefix in selector.exceptions() {
            let Some(users) = self.exceptions.get_mut(&prefix) else { continue };
            *users -= 1;
            if *users == 0 {
                self.exceptions.remove(&prefix);
            }
        }
        let unnamed = selector
            .prefixes()
            .into_iter()
            .filter(|prefix| !self.exceptions.contains_key(prefix) && !self.index.has_prefix(prefix));
        self.unnamed.extend(unnamed);
        self.ids.remove(&selection.selector);
        self.selections.remove(&id);
    }

    /// Updates the selections after a change of an identity; `None` where it did not exist before or does not now.
    /// Returns the selectors that select it now or did before. Costs what may match, not all selectors.
    pub(crate) fn update(
        &mut self,
        id: u32,
        old: Option<&Identity>,
        new: Option<&Identity>,
    ) -> Vec<SelectorId> {
        let mut touched = self.index.candidates(old.into_iter().chain(new));
        touched.retain(|selector_id| {
            let Some(selection) = self.selections.get_mut(selector_id) else { return false };
            let selected = new.is_some_and(|identity| selection.selector.selects(id, identity));
            match (selection.identities.binary_search(&id), selected) {
                (Err(_), false) => return false,
                (Ok(_), true) => return true,
                (Ok(at), false) => drop(selection.identities.remove(at)),
                (Err(at), true) => selection.identities.insert(at, id),
            }
            self.changed.insert(selection.text.clone());
            true
        });
        touched
    }

    /// Returns the selectors that select an identity, sorted.
    pub(crate) fn selecting(&self, id: u32, identity: &Identity) -> Vec<SelectorId> {
        let mut found = self.index.candidates(std::iter::once(identity));
        found.retain(|selector| self.get(*selector).is_some_and(|selection| selection.has(id)));
        found
    }

    /// Rebuilds the indexes if many selectors were added since the last time.
    pub(crate) fn compact(&mut self) {
        if self.density.is_due(self.by_text.len()) {
            self.by_text = std::mem::take(&mut self.by_text).into_iter().collect();
            self.index.compact();
        }
    }

    /// Iterates over the prefixes that selectors name, exceptions included; some repeatedly.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = IpNetwork> {
        self.index.prefixes().chain(self.exceptions.keys().copied())
    }

    /// Whether a selector names the prefix.
    pub(crate) fn names(&self, prefix: &IpNetwork) -> bool {
        self.index.has_prefix(prefix) || self.exceptions.contains_key(prefix)
    }

    /// Returns the prefixes that selectors have ceased to name since the last call; some may be named again.
    pub(crate) fn take_unnamed(&mut self) -> BTreeSet<IpNetwork> {
        std::mem::take(&mut self.unnamed)
    }

    /// Whether a selector selects by CIDR groups.
    pub(crate) fn has_cidr_groups(&self) -> bool {
        self.of_cidr_groups > 0
    }

    /// Returns the texts of selectors that have changed since the last call, removed ones included.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Iterates over the selectors with a text.
    pub(crate) fn with_text(&self, text: &Arc<str>) -> impl Iterator<Item = &Selection<S>> {
        let range = (text.clone(), SelectorId::FIRST)..=(text.clone(), SelectorId::LAST);
        self.by_text.range(range).filter_map(|(_, id)| self.get(*id))
    }

    /// Iterates over the texts of all selectors, in order.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_text.iter().map(|(text, _)| text)
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
        self.selections.get(&id).map(Box::as_ref)
    }
}
