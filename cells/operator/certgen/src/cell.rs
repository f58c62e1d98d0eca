//! The wiring.

use std::sync::Arc;

use hive::prelude::*;
use k8s_types::Api;

use crate::config::CertgenConfig;
use crate::error::Error;
use crate::secrets::write_all;

/// Returns the cell that makes certificates and then stops its hive.
pub fn cell() -> Cell {
    let cells = [config::<CertgenConfig>(), invoke(start)];
    module("certgen", "Certificates of the cluster", cells)
}

#[derive(Params)]
struct Parts {
    config: Config<CertgenConfig>,
    api: Option<Arc<dyn Api>>,
    shutdown: Shutdowner,
    jobs: JobGroup,
}

fn start(p: Parts) -> Result<(), Error> {
    let Parts { config, api, shutdown, jobs } = p;
    let certificates = config.certificates()?;
    let api = api.ok_or(Error::NoServer)?;
    jobs.one_shot("certgen", move |cx: JobCx| async move {
        match cx.token().run_until_cancelled(write_all(api, &config, &certificates)).await {
            Some(Err(error)) => shutdown.shutdown_with_code(error, 1),
            Some(Ok(())) => shutdown.shutdown(),
            None => {}
        }
        Ok(())
    })
    .add();
    Ok(())
}
