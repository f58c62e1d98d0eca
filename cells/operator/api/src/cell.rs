//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_client::ServerProbe;
use metrics::{Metrics, MetricsProfile};
use parking_lot::Mutex;

use crate::answer::Answers;
use crate::config::OperatorApiConfig;
use crate::error::Error;
use crate::server::{addresses, bind, serve};

/// Serves the API, in every replica; gives the registry of metrics its prefix and address.
pub fn cell() -> Cell {
    let cells = [config::<OperatorApiConfig>(), provide(metrics_profile), invoke(serve_api)];
    module("operator-api", "HTTP API of the operator", cells)
}

fn metrics_profile(config: Config<OperatorApiConfig>) -> Result<Arc<MetricsProfile>, Error> {
    let address = match config.enable_metrics {
        true => config.operator_prometheus_serve_addr.clone(),
        false => String::new(),
    };
    let (option, tls) = ("operator-prometheus-serve-addr", config.tls()?);
    Ok(Arc::new(MetricsProfile { prefix: "cilium_operator", option, address, tls }))
}

#[derive(Params)]
struct ApiParams {
    config: Config<OperatorApiConfig>,
    probe: Option<Arc<ServerProbe>>,
    metrics: Arc<Metrics>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn serve_api(p: ApiParams) -> Result<(), Error> {
    let addresses = addresses(&p.config.operator_api_serve_addr)?;
    let bound: Arc<Mutex<Vec<_>>> = Arc::default();
    let listeners = bound.clone();
    let to_bind = addresses.clone();
    p.lifecycle
        .hook("listen")
        .on_start(move |_| async move {
            *listeners.lock() = bind(&to_bind)?;
            Ok(())
        })
        .add();
    let answers = Answers { probe: p.probe, metrics: p.metrics };
    for at in 0..addresses.len() {
        let (bound, answers) = (bound.clone(), answers.clone());
        let job = if at == 0 { "serve".to_owned() } else { format!("serve-{at}") };
        p.jobs
            .one_shot(job, move |cx: JobCx| async move {
                let listener = bound.lock().get_mut(at).and_then(Option::take);
                if let Some(listener) = listener {
                    serve(listener, answers, cx).await;
                }
                Ok(())
            })
            .add();
    }
    Ok(())
}
