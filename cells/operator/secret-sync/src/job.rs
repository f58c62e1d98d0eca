//! The job that follows policies, originals and copies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use hive::JobCx;
use hive::health::{SHOWN, summarize};
use k8s_tables::Row;
use k8s_types::core::Secret;
use k8s_types::{Key, Kind, Resource as _, Selection, SmolStr, Source};
use k8s_writer::{Target, Writer};
use operator_election::Leadership;
use operator_policy_status::PolicyObject;
use policy_engine::{SecretRef, Settings};
use statedb::{Batch, Table};

use crate::copies;
use crate::originals::{Changed, Event, Secrets};
use crate::references::{References, secrets};

/// The tables that the job follows.
pub(crate) struct Tables {
    pub(crate) namespaced: Arc<Table<Row<PolicyObject<false>>>>,
    pub(crate) clusterwide: Arc<Table<Row<PolicyObject<true>>>>,
}

/// An event of a watch: of one original, or of all copies.
type Followed = (Option<SecretRef>, Event);

/// An original that is followed.
struct Original {
    secrets: Secrets,
    watch: AbortHandle,
}

/// Keeps the copies of secrets.
pub(crate) struct SecretSync {
    tables: Tables,
    settings: Settings,
    source: Arc<dyn Source>,
    namespace: SmolStr,
    writer: Arc<Writer>,
    leadership: Leadership,
    references: References,
    originals: BTreeMap<SecretRef, Original>,
    copies: Secrets,
    events: SelectAll<BoxStream<'static, Followed>>,
    /// Names of copies to compare with their originals.
    dirty: BTreeSet<SmolStr>,
    /// Originals without a copy, with the reasons.
    problems: BTreeMap<SecretRef, &'static str>,
}

impl SecretSync {
    pub(crate) fn new(
        tables: Tables,
        settings: Settings,
        source: Arc<dyn Source>,
        namespace: &str,
        writer: Arc<Writer>,
        leadership: Leadership,
    ) -> SecretSync {
        SecretSync {
            tables,
            settings,
            source,
            namespace: namespace.into(),
            writer,
            leadership,
            references: References::default(),
            originals: BTreeMap::new(),
            copies: Secrets::default(),
            events: SelectAll::new(),
            dirty: BTreeSet::new(),
            problems: BTreeMap::new(),
        }
    }

    pub(crate) async fn run(mut self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of policies");
        let (namespaced, clusterwide) = (self.tables.namespaced.clone(), self.tables.clusterwide.clone());
        let listed = async {
            namespaced.wait_initialized().await;
            clusterwide.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut of_namespaces, mut of_cluster) = (namespaced.changes(), clusterwide.changes());
        self.read_policies(&of_namespaces.try_next());
        self.read_policies(&of_cluster.try_next());
        let copies = Selection::all(Secret::KIND).in_namespace(&self.namespace);
        let events = k8s_tables::events::<Secret>(&*self.source, copies);
        self.events.push(events.map(|event| (None, event)).boxed());
        loop {
            self.reconcile();
            self.report(&cx);
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                batch = of_namespaces.next() => self.read_policies(&batch),
                batch = of_cluster.next() => self.read_policies(&batch),
                Some((original, event)) = self.events.next() => self.read_secrets(original, event),
            }
        }
    }

    fn read_policies<const CLUSTERWIDE: bool>(&mut self, batch: &Batch<Row<PolicyObject<CLUSTERWIDE>>>) {
        for change in batch {
            let metadata = change.object.metadata();
            let policy = (CLUSTERWIDE, Key::new(metadata.namespace.clone(), metadata.name.clone()));
            let mut named = match change.deleted {
                true => BTreeSet::new(),
                false => match change.object.parse(&self.settings) {
                    Ok(policy) => secrets(&policy),
                    // Agents keep the rules of the last valid version.
                    Err(_) => continue,
                },
            };
            // Agents read these without a copy.
            named.retain(|secret| *secret.namespace != *self.namespace);
            let difference = self.references.set(policy, named);
            for secret in difference.removed {
                self.dirty.insert(copies::name(&secret));
                self.problems.remove(&secret);
                if let Some(original) = self.originals.remove(&secret) {
                    original.watch.abort();
                }
            }
            for secret in difference.added {
                self.follow(secret);
            }
        }
    }

    fn follow(&mut self, secret: SecretRef) {
        let selection = Selection::all(Secret::KIND).in_namespace(&secret.namespace).named(&secret.name);
        let (events, watch) = abortable(k8s_tables::events::<Secret>(&*self.source, selection));
        let of = secret.clone();
        self.events.push(events.map(move |event| (Some(of.clone()), event)).boxed());
        self.originals.insert(secret, Original { secrets: Secrets::default(), watch });
    }

    fn read_secrets(&mut self, original: Option<SecretRef>, event: Event) {
        if let Some(secret) = original {
            let Some(original) = self.originals.get_mut(&secret) else { return };
            if !matches!(original.secrets.apply(event), Changed::Nothing) {
                self.dirty.insert(copies::name(&secret));
            }
            return;
        }
        let before: Vec<SmolStr> = self.copies.names().cloned().collect();
        match self.copies.apply(event) {
            Changed::Nothing => {}
            Changed::One(name) => _ = self.dirty.insert(name),
            Changed::All => {
                self.dirty.extend(before);
                self.dirty.extend(self.copies.names().cloned());
                self.dirty.extend(self.originals.keys().map(copies::name));
            }
        }
    }

    /// Compares copies with their originals, and enqueues what is to be written.
    fn reconcile(&mut self) {
        if !self.copies.is_listed() {
            return;
        }
        for name in std::mem::take(&mut self.dirty) {
            self.reconcile_copy(&name);
        }
    }

    fn reconcile_copy(&mut self, name: &SmolStr) {
        let target = Target::new(Kind::Secret, Key::new(self.namespace.clone(), name.clone()));
        let copy = self.copies.get(name).cloned();
        let owner = copy.as_ref().and_then(|copy| copies::owner(copy));
        let mut wanted: Vec<SecretRef> =
            self.originals.keys().filter(|secret| copies::name(secret) == *name).cloned().collect();
        // The original of the copy that there is, before others of its name.
        wanted.sort_by_key(|secret| Some(secret) != owner.as_ref());
        let mut rest = wanted.into_iter();
        let first = rest.next();
        for other in rest {
            self.problems.insert(other, "has the name of another secret's copy");
        }
        let mutation = match (first, &copy, owner) {
            (Some(secret), Some(_), None) => {
                self.problems.insert(secret, "is not copied: there is a secret of this name that is no copy");
                None
            }
            (Some(secret), Some(_), Some(owner)) if owner != secret => {
                // Free once the other one's copy is deleted, which is an event.
                self.problems.insert(secret, "has the name of another secret's copy");
                let is_own = copy.as_ref().is_some_and(|copy| copies::is_own(copy));
                is_own.then(|| copies::delete(owner, self.leadership.clone()))
            }
            (Some(secret), copy, _) => self.mutation(secret, copy.as_deref()),
            (None, Some(copy), Some(owner)) if copies::is_own(copy) => {
                Some(copies::delete(owner, self.leadership.clone()))
            }
            (None, ..) => None,
        };
        match mutation {
            // Dropped: the watch of the copies shows how it went.
            Some(mutation) => drop(self.writer.enqueue(target, mutation)),
            None => self.writer.forget(&target),
        }
    }

    /// Returns the mutation of a copy that there may be already, if it is needed.
    fn mutation(&mut self, secret: SecretRef, copy: Option<&Secret>) -> Option<k8s_writer::Mutation> {
        self.problems.remove(&secret);
        let followed = &self.originals.get(&secret)?.secrets;
        if !followed.is_listed() {
            return None;
        }
        match (followed.get(&secret.name), copy) {
            (None, None) => {
                self.problems.insert(secret, "does not exist");
                None
            }
            (None, Some(_)) => {
                self.problems.insert(secret.clone(), "does not exist");
                Some(copies::delete(secret, self.leadership.clone()))
            }
            (Some(original), Some(copy)) if copies::is_equal(copy, original) => None,
            (Some(_), _) if !copies::fits(&secret) => {
                self.problems.insert(secret, "has a name of more than 63 characters");
                None
            }
            (Some(original), _) => Some(copies::write(secret, original, self.leadership.clone())),
        }
    }

    /// Reports secrets without a copy. A missing one is no failure of the operator.
    fn report(&self, cx: &JobCx) {
        let failed = |secrets: &Secrets| secrets.error().map(ToString::to_string);
        let errors = self.originals.iter().filter_map(|(secret, original)| {
            Some(format!("{}/{}: {}", secret.namespace, secret.name, failed(&original.secrets)?))
        });
        let errors = errors.chain(failed(&self.copies).map(|error| format!("{}: {error}", self.namespace)));
        let errors = summarize(errors, SHOWN, "; ");
        if !errors.is_empty() {
            cx.health.degraded("Secrets cannot be followed, the copies stay", errors);
            return;
        }
        let problems = self.problems.iter();
        let problems =
            problems.map(|(secret, problem)| format!("{}/{} {problem}", secret.namespace, secret.name));
        let problems = summarize(problems, SHOWN, "; ");
        let all = self.originals.len();
        match problems.is_empty() {
            true => cx.health.ok(format_args!("{all} secrets of policies")),
            false => cx.health.ok(format_args!("{all} secrets of policies, without a copy: {problems}")),
        }
    }
}
