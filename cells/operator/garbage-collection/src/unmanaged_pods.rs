//! Restarts of pods without an endpoint: those that were started before the agent, so that another plugin has connected them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive::JobCx;
use k8s_types::selector::LabelRequirements;
use k8s_types::{Key, Kind, SmolStr};
use operator_objects::{EndpointRow, Phase, Pod, PodRow};
use statedb::{ReadSource, Table};
use tokio::time::{Instant, sleep};

use crate::candidates::Candidates;
use crate::metrics::Numbers;
use crate::object::Object as _;
use crate::requests::{Requests, Run};

/// How long a pod must be running without an endpoint.
const MIN_AGE: Duration = Duration::from_secs(30);

/// The time between two restarts of pods of one name.
const RESTART_INTERVAL: Duration = Duration::from_secs(300);

/// Restarts the selected pods that have no CiliumEndpoint.
pub(crate) struct PodRestarter {
    pub(crate) pods: Arc<Table<PodRow>>,
    pub(crate) endpoints: Arc<Table<EndpointRow>>,
    pub(crate) selector: LabelRequirements,
    pub(crate) requests: Requests,
    pub(crate) interval: Duration,
    pub(crate) numbers: Numbers,
}

impl PodRestarter {
    pub(crate) async fn run(self, cx: JobCx) -> anyhow::Result<()> {
        cx.health.ok("Waits for the lists of pods and CiliumEndpoints");
        let listed = async {
            self.pods.wait_initialized().await;
            self.endpoints.wait_initialized().await;
        };
        if cx.token().run_until_cancelled(listed).await.is_none() {
            return Ok(());
        }
        let (mut candidates, mut restarted) = (Candidates::default(), BTreeMap::new());
        let rounds = async {
            loop {
                self.restart_one(&mut candidates, &mut restarted, &cx).await;
                sleep(self.interval).await;
            }
        };
        cx.token().run_until_cancelled(rounds).await;
        Ok(())
    }

    async fn restart_one(
        &self,
        candidates: &mut Candidates,
        restarted: &mut BTreeMap<Key, Instant>,
        cx: &JobCx,
    ) {
        let now = Instant::now();
        let found: Vec<(Key, SmolStr)> = {
            let snapshot = self.pods.snapshot();
            let unmanaged = self.pods.all(&snapshot).filter(|pod| self.is_unmanaged(pod, &snapshot));
            unmanaged.map(|pod| pod.key_and_uid()).collect()
        };
        let count = found.len();
        self.numbers.unmanaged.set(i64::try_from(count).unwrap_or(i64::MAX));
        restarted.retain(|_, at| now.saturating_duration_since(*at) < RESTART_INTERVAL);
        let due = candidates.update(found, now, MIN_AGE);
        let next = due.into_iter().find(|(key, _)| !restarted.contains_key(key));
        let mut run = Run::default();
        if let Some((key, uid)) = next {
            let answer = self.requests.delete(Kind::Pod, &key, &uid, None).await;
            if answer.is_ok() {
                tracing::info!(pod = %key, "Restarted a pod that has no CiliumEndpoint");
            }
            // After a refusal, too: the other pods get their turn.
            restarted.insert(key, now);
            run.count(answer);
        }
        run.report(&cx.health, &format!("{count} selected pods have no CiliumEndpoint"));
    }

    fn is_unmanaged(&self, pod: &Pod, source: &impl ReadSource) -> bool {
        pod.phase == Phase::Running
            && !pod.is_terminating
            && pod.host.is_none()
            && self.selector.matches(|label| pod.labels.get(label).map(SmolStr::as_str))
            && self.endpoints.get(source, EndpointRow::by_name(&pod.namespace, &pod.name)).is_none()
    }
}
