//! The wiring.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hive::Scope;
use hive::prelude::*;
use k8s_types::Api;
use rand::RngExt as _;
use tokio::time::Instant;

use crate::Error;
use crate::config::ElectionConfig;
use crate::election::Election;
use crate::leadership::Leadership;
use crate::run::Participant;

/// Takes part in the election; the cells of the scope `L` run while this process leads.
pub fn cell<L: ?Sized + 'static>() -> Cell {
    let cells = [config::<ElectionConfig>(), supply(Arc::new(Leadership::default())), invoke(start::<L>)];
    module("leader-election", "Leader election by a lease", cells)
}

#[derive(Params)]
struct ElectionParams {
    config: Config<ElectionConfig>,
    api: Option<Arc<dyn Api>>,
    leadership: Arc<Leadership>,
    shutdown: Shutdowner,
    jobs: JobGroup,
}

fn start<L: ?Sized + 'static>(p: ElectionParams, scope: Arc<Scope<L>>) -> Result<(), Error> {
    let api = p.api.ok_or(Error::NoServer)?;
    let identity = identity()?;
    let participant = Participant {
        api,
        scope,
        namespace: p.config.namespace().to_owned(),
        election: Election::new(identity.clone(), p.config.timing(), Instant::now()),
        identity,
        request_timeout: p.config.request_timeout(),
        leadership: Leadership::clone(&p.leadership),
        shutdown: p.shutdown,
    };
    p.jobs.one_shot("participate", move |cx: JobCx| participant.run(cx)).add();
    Ok(())
}

/// Letters and digits of random parts of names: those of Kubernetes, which form no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The host's name and ten random characters.
fn identity() -> Result<String, Error> {
    let path = Path::new("/proc/sys/kernel/hostname");
    let host =
        fs::read_to_string(path).map_err(|source| Error::HostName { path: path.to_owned(), source })?;
    let mut random = rand::rng();
    let suffix: String =
        (0..10).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect();
    Ok(format!("{}-{suffix}", host.trim()))
}
