//! The commands `policyrepo/*`, `policy/compute-all` and `policy/lookup-flow` of scripts and of the shell: the rules, the
//! selectors, the revision, and verdicts on flows between identities.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use hive::prelude::*;
use hive_command::{Call, Command, Flag, Output};
use policy_engine::{Decision, Direction, Engine, NamedPorts};
use serde::Serialize;
use statedb::Table;
use tokio::sync::Notify;

use crate::api::rest;
use crate::api::why::protocol;
use crate::model::computation::PolicyComputation;
use crate::model::selectors::{PeerSelector, SubjectSelector};
use crate::rounds::state::Shared;

/// The inputs of the commands.
#[derive(Clone)]
pub(crate) struct RepositoryCommands {
    pub(crate) shared: Shared,
    pub(crate) revision: Arc<AtomicU64>,
    pub(crate) recompute: Arc<Notify>,
    pub(crate) computations: Table<PolicyComputation>,
    pub(crate) selectors: Table<PeerSelector>,
    pub(crate) subject_selectors: Table<SubjectSelector>,
}

impl RepositoryCommands {
    pub(crate) fn commands(self) -> Members<Command> {
        Members(vec![
            self.command("policyrepo/list", "list all rules", |of, call| async move {
                let [] = call.exactly()?;
                Ok(Output::text(of.shared.with(|state| rest::rules(state.core.engine())).await))
            }),
            self.command("policyrepo/selectorcache", "list the selectors of peers", |of, call| async move {
                let [] = call.exactly()?;
                of.list_selectors(call.flags.is_on("subject"))
            })
            .flag(Flag::switch("subject", "list the selectors of endpoints instead")),
            self.command("policyrepo/bump-revision", "start a new revision", |of, call| async move {
                let [] = call.exactly()?;
                let revision = of.bump_revision().await;
                Ok(Output::text(format!("Bumped revision to {revision}\n")))
            }),
            self.command(
                "policy/compute-all",
                "compute the policies of all identities",
                |of, call| async move {
                    let [] = call.exactly()?;
                    of.compute_all().await;
                    Ok(Output::text(""))
                },
            ),
            self.command("policy/lookup-flow", "print the verdict on a flow", |of, call| async move {
                of.shared.with(move |state| lookup_flow(state.core.engine(), &call)).await
            })
            .takes("from-id to-id proto port")
            .flag(Flag::switch("egress", "by the policy of the sender"))
            .flag(Flag::switch("ingress", "by the policy of the receiver")),
        ])
    }

    fn command<F>(&self, name: &str, summary: &'static str, run: fn(RepositoryCommands, Call) -> F) -> Command
    where
        F: Future<Output = anyhow::Result<Output>> + Send + 'static,
    {
        let of = self.clone();
        Command::new(name, summary, move |call: Call| run(of.clone(), call))
    }

    /// Returns all rows of one of the tables of selectors as JSON.
    fn list_selectors(&self, of_subjects: bool) -> anyhow::Result<Output> {
        fn list<T: statedb::TableSpec + Serialize>(table: &Table<T>) -> serde_json::Result<String> {
            let snapshot = table.snapshot();
            serde_json::to_string_pretty(&table.all(&snapshot).map(|row| &**row).collect::<Vec<_>>())
        }
        let text = if of_subjects { list(&self.subject_selectors) } else { list(&self.selectors) };
        Ok(Output::text(text? + "\n"))
    }

    async fn bump_revision(&self) -> u64 {
        let revision = self.revision.clone();
        let bump = move |state: &mut crate::rounds::state::State| {
            state.core.bump_revision();
            let new = state.core.engine().revision();
            revision.store(new, Ordering::Release);
            new
        };
        let new = self.shared.with(bump).await;
        self.recompute.notify_one();
        new
    }

    /// Has policies computed that are of a previous revision, and waits for them.
    async fn compute_all(&self) {
        let invalidate = |state: &mut crate::rounds::state::State| {
            state.core.invalidate_computations();
            state.core.engine().revision()
        };
        let revision = self.shared.with(invalidate).await;
        self.recompute.notify_one();
        loop {
            let snapshot = self.computations.snapshot();
            let (mut rows, watch) = self.computations.all_watch(&snapshot);
            if rows.all(|row| row.new_policy.revision >= revision) {
                return;
            }
            drop(snapshot);
            watch.changed().await;
        }
    }
}

/// Returns the verdict of the policy of one end on a flow between two identities.
fn lookup_flow(engine: &Engine, call: &Call) -> anyhow::Result<Output> {
    let direction = match (call.flags.is_on("ingress"), call.flags.is_on("egress")) {
        (true, false) => Direction::Ingress,
        (false, true) => Direction::Egress,
        _ => anyhow::bail!("give exactly one of --egress and --ingress"),
    };
    let [from, to, proto, port] = call.exactly()?;
    let identity = |name: &str, text: &str| -> anyhow::Result<u32> {
        let id = text.parse().with_context(|| format!("{name} {text:?} is no identity"))?;
        ensure!(engine.labels(id).is_some(), "identity {id} not found");
        Ok(id)
    };
    let (from, to) = (identity("from-id", from)?, identity("to-id", to)?);
    let port: u16 = port.parse().with_context(|| format!("port {port:?} is no number from 0 to 65535"))?;
    let (subject, peer) = match direction {
        Direction::Ingress => (to, from),
        Direction::Egress => (from, to),
    };
    let resolved = engine.resolve(subject, &NamedPorts::default(), usize::MAX)?;
    let verdict = resolved.lookup(direction, peer, protocol(proto)?, port);
    Ok(Output::text(if verdict.decision == Decision::Allow { "allowed\n" } else { "denied\n" }))
}
