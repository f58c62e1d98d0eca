//! Selections: the identities that each selector in use selects, updated incrementally.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use smallvec::SmallVec;

use crate::density::Density;
use crate::identities::{Identities, Identity};
use crate::identity_ids::IdentityIds;
use crate::model::{Subject, World};
use crate::selector::{CidrSelector, FqdnSelector, Selector};
use crate::selector_index::SelectorIndex;
use crate::selector_text::{Plain, SelectorText};
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
    /// Returns the plain prefix that it is, if it is one and nothing else.
    fn plain(&self) -> Option<(Plain, World)>;
}

impl Selects for Selector {
    fn selects(&self, _: u32, identity: &Identity) -> bool {
        identity.is_selected_by(self)
    }

    fn selector(&self) -> &Selector {
        self
    }

    fn plain(&self) -> Option<(Plain, World)> {
        if let Selector::Cidr(cidr) = self { cidr.plain() } else { None }
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

    fn plain(&self) -> Option<(Plain, World)> {
        None
    }
}

/// A selector with the identities that it selects.
#[derive(Debug)]
pub(crate) struct Selection<S> {
    selector: Stored<S>,
    /// The selected identities.
    pub(crate) identities: IdentityIds,
    /// The policy entries that use it. The thousands of prefixes of a rule share one value.
    pub(crate) uses: Arc<Uses>,
}

/// A selector in use. A rule may have thousands of plain prefixes, which are stored without an allocation.
#[derive(Debug)]
enum Stored<S> {
    Plain(Plain, World),
    Other(Arc<Known<S>>),
}

/// A selector with its text.
#[derive(Debug)]
struct Known<S> {
    selector: S,
    text: Arc<str>,
}

impl<S: Selects> Selection<S> {
    /// Whether the identity is selected. Logarithmic.
    pub(crate) fn has(&self, identity: u32) -> bool {
        self.identities.binary_search(&identity).is_ok()
    }

    /// Returns the selector's text, as the API shows it.
    pub(crate) fn text(&self) -> SelectorText {
        match &self.selector {
            Stored::Plain(plain, _) => (*plain).into(),
            Stored::Other(known) => SelectorText::other(known.text.clone()),
        }
    }

    /// Whether it selects every identity.
    pub(crate) fn is_wildcard(&self) -> bool {
        matches!(&self.selector, Stored::Other(known) if known.selector.selector().is_wildcard())
    }

    /// Returns the DNS name or pattern, if it selects by these.
    pub(crate) fn fqdn(&self) -> Option<&FqdnSelector> {
        match &self.selector {
            Stored::Other(known) => match known.selector.selector() {
                Selector::Fqdn(fqdn) => Some(fqdn),
                _ => None,
            },
            Stored::Plain(..) => None,
        }
    }

    fn selects(&self, id: u32, identity: &Identity) -> bool {
        match &self.selector {
            Stored::Plain(plain, _) => identity.is_inside(&plain.prefix),
            Stored::Other(known) => known.selector.selects(id, identity),
        }
    }

    /// Returns the selector; that of a plain prefix is made.
    fn selector(&self) -> Cow<'_, Selector> {
        match &self.selector {
            Stored::Plain(plain, world) => Cow::Owned(Selector::Cidr(CidrSelector::of_plain(*plain, *world))),
            Stored::Other(known) => Cow::Borrowed(known.selector.selector()),
        }
    }

    fn is_plain(&self, plain: Plain) -> bool {
        matches!(self.selector, Stored::Plain(own, _) if own == plain)
    }
}

/// A selector as a key.
#[derive(Debug)]
struct BySelector<S>(Arc<Known<S>>);

impl<S: Eq> PartialEq for BySelector<S> {
    fn eq(&self, other: &BySelector<S>) -> bool {
        self.0.selector == other.0.selector
    }
}

impl<S: Eq> Eq for BySelector<S> {}

impl<S: Hash> Hash for BySelector<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.selector.hash(state);
    }
}

impl<S> Borrow<S> for BySelector<S> {
    fn borrow(&self) -> &S {
        &self.0.selector
    }
}

/// All selectors in use.
#[derive(Debug)]
pub(crate) struct Selections<S> {
    /// By selector, but for plain prefixes, which are in the index.
    ids: HashMap<BySelector<S>, SelectorId>,
    selections: BTreeMap<SelectorId, Selection<S>>,
    index: SelectorIndex,
    /// By text, but for plain prefixes: a selector of nodes and one of endpoints may have the same.
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
    changed: BTreeSet<SelectorText>,
}

impl<S> Default for Selections<S> {
    fn default() -> Self {
        Selections {
            ids: HashMap::new(),
            selections: BTreeMap::new(),
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
        if let Some(id) = self.id(selector) {
            if let Some(selection) = self.selections.get_mut(&id) {
                self.sharing.add(&mut selection.uses, Use { subject, labels });
                self.changed.insert(selection.text());
            }
            return id;
        }
        let id = self.next;
        // No process lives through as many selectors.
        self.next = SelectorId(id.0.saturating_add(1));
        let selected = identities
            .candidates(selector.selector())
            .filter(|(id, identity)| selector.selects(*id, identity))
            .map(|(id, _)| id)
            .collect();
        self.index.insert(id, selector.selector());
        for prefix in selector.selector().exceptions() {
            *self.exceptions.entry(prefix).or_default() += 1;
        }
        self.of_cidr_groups += usize::from(selector.selector().is_of_cidr_groups());
        let stored = match selector.plain() {
            Some((plain, world)) => Stored::Plain(plain, world),
            None => {
                let text: Arc<str> = selector.selector().key().into();
                let known = Arc::new(Known { selector: selector.clone(), text: text.clone() });
                self.by_text.insert((text, id));
                self.ids.insert(BySelector(known.clone()), id);
                Stored::Other(known)
            }
        };
        let uses = self.sharing.first(Use { subject, labels });
        let selection = Selection { selector: stored, identities: selected, uses };
        self.changed.insert(selection.text());
        self.selections.insert(id, selection);
        id
    }

    fn id(&self, selector: &S) -> Option<SelectorId> {
        let Some((plain, world)) = selector.plain() else { return self.ids.get(selector).copied() };
        let is_it = |selection: &Selection<S>| matches!(selection.selector, Stored::Plain(own, of) if own == plain && of == world);
        self.index.named(plain.prefix).find(|id| self.get(*id).is_some_and(is_it))
    }

    /// Decrements the selector's reference count, for an entry with these labels and this subject; removes the selector
    /// at zero.
    pub(crate) fn release(&mut self, id: SelectorId, subject: Option<SelectorId>, labels: &Arc<[String]>) {
        let Some(selection) = self.selections.get_mut(&id) else { return };
        self.changed.insert(selection.text());
        if selection.uses.count > 1 {
            self.sharing.remove(&mut selection.uses, Use { subject, labels });
            return;
        }
        let Some(selection) = self.selections.remove(&id) else { return };
        let selector = selection.selector();
        self.index.remove(id, &selector);
        if let Stored::Other(known) = &selection.selector {
            self.by_text.remove(&(known.text.clone(), id));
            self.ids.remove(&known.selector);
        }
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
            let selected = new.is_some_and(|identity| selection.selects(id, identity));
            let is_change = selection.identities.set(id, selected);
            if is_change {
                self.changed.insert(selection.text());
            }
            is_change || selected
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
        if self.density.is_due(self.selections.len()) {
            self.selections = std::mem::take(&mut self.selections).into_iter().collect();
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
    pub(crate) fn take_changed(&mut self) -> BTreeSet<SelectorText> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the selectors with a text.
    pub(crate) fn with_text(&self, text: &SelectorText) -> SmallVec<[&Selection<S>; 1]> {
        if let Some(plain) = text.plain() {
            let named = self.index.named(plain.prefix).filter_map(|id| self.get(id));
            return named.filter(|selection| selection.is_plain(plain)).collect();
        }
        let text: Arc<str> = text.into();
        let range = (text.clone(), SelectorId::FIRST)..=(text, SelectorId::LAST);
        self.by_text.range(range).filter_map(|(_, id)| self.get(*id)).collect()
    }

    /// Returns the texts of all selectors.
    pub(crate) fn texts(&self) -> BTreeSet<SelectorText> {
        self.selections.values().map(Selection::text).collect()
    }

    /// Returns the number of selectors that were added since the start.
    pub(crate) fn added(&self) -> u64 {
        self.next.0.get() - SelectorId::FIRST.0.get()
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
}
