//! The registration of definitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use k8s_types::schema::custom_resource_definition;
use k8s_types::{Api, ApiError, Key, Kind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::Error;
use crate::version::Version;

/// The label with the version of the schema.
const VERSION_LABEL: &str = "io.cilium.k8s.crd.schema.version";

/// How long a conflict or an API server that is away is retried, and how long a definition may take to be established.
const LIMIT: Duration = Duration::from_secs(60);

/// Intervals of attempts: a definition is mostly established within milliseconds.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The kinds whose objects a node needs before its first pod runs. A server pauses creations of objects for 2 s after the kind
/// was established, so that these are registered before the others, whose large schemas keep it busy.
const FIRST: [Kind; 2] = [Kind::CiliumNode, Kind::CiliumIdentity];

/// Proof for other cells that the definitions were registered before their hooks run.
#[derive(Debug)]
pub struct Registered(pub(crate) ());

/// Registers the definitions of these kinds and waits until objects of them are accepted.
pub(crate) async fn register_all(api: Arc<dyn Api>, kinds: BTreeSet<Kind>) -> Result<(), Error> {
    let (first, others): (Vec<Kind>, Vec<Kind>) = kinds.into_iter().partition(|kind| FIRST.contains(kind));
    let first = try_join_all(first.into_iter().map(|kind| upsert(&*api, kind))).await?;
    let first = try_join_all(first.into_iter().map(|name| established(&*api, name)));
    let others = try_join_all(others.into_iter().map(async |kind| {
        let name = upsert(&*api, kind).await?;
        established(&*api, name).await
    }));
    try_join(first, others).await?;
    Ok(())
}

/// The next request about a definition.
#[derive(Debug, PartialEq)]
enum Step {
    Create,
    Update(Value),
    Leave,
}

impl Step {
    fn verb(&self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Update(_) => "update",
            Step::Leave => "get",
        }
    }
}

/// Creates or updates the definition of a kind, unless it is current. Returns its name.
async fn upsert(api: &dyn Api, defined: Kind) -> Result<String, Error> {
    let wanted = custom_resource_definition(defined);
    let kind = Kind::CustomResourceDefinition;
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let key = Key::new("", name.as_str());
    let deadline = Instant::now() + LIMIT;
    let mut waits = Waits::new();
    loop {
        let (verb, answer) = match read(api, &key).await {
            Ok(present) => {
                let step = step(&wanted, present);
                let verb = step.verb();
                let answer = match step {
                    Step::Create => api.create(kind, wanted.to_string().into()).await.map(drop),
                    Step::Update(object) => api.update(kind, object.to_string().into()).await.map(drop),
                    Step::Leave => break,
                };
                (verb, answer)
            }
            Err(error) => ("get", Err(error)),
        };
        match answer {
            Ok(()) => {
                tracing::info!(name, verb, "CustomResourceDefinition is registered");
                break;
            }
            // Another operator was faster: whether its definition is new enough is decided by the next read.
            Err(ApiError::AlreadyExists(_) | ApiError::Conflict(_) | ApiError::Unavailable { .. })
                if Instant::now() < deadline => {}
            Err(error) => return Err(Error::Refused { name, verb, error }),
        }
        sleep(waits.next()).await;
    }
    Ok(name)
}

/// Decides by the present definition.
fn step(wanted: &Value, present: Option<Value>) -> Step {
    let Some(mut object) = present else { return Step::Create };
    let version = |object: &Value| Version::parse(object["metadata"]["labels"][VERSION_LABEL].as_str()?);
    let has_schema = object["spec"]["versions"][0]["schema"]["openAPIV3Schema"].is_object();
    let is_current = version(&object).is_some_and(|found| Some(found) >= version(wanted));
    if is_current && has_schema {
        return Step::Leave;
    }
    if !object["metadata"]["labels"].is_object() {
        object["metadata"]["labels"] = json!({});
    }
    for (label, value) in wanted["metadata"]["labels"].as_object().into_iter().flatten() {
        object["metadata"]["labels"][label] = value.clone();
    }
    object["spec"] = wanted["spec"].clone();
    object["spec"]["preserveUnknownFields"] = false.into();
    object["apiVersion"] = wanted["apiVersion"].clone();
    object["kind"] = wanted["kind"].clone();
    Step::Update(object)
}

async fn read(api: &dyn Api, key: &Key) -> Result<Option<Value>, ApiError> {
    match api.get(Kind::CustomResourceDefinition, key).await {
        Ok(json) => match serde_json::from_slice(&json) {
            Ok(object) => Ok(Some(object)),
            Err(error) => Err(ApiError::Unavailable {
                message: format!("the answer is no JSON: {error}"),
                retry_after: None,
            }),
        },
        Err(ApiError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until the API server accepts objects of the kind.
async fn established(api: &dyn Api, name: String) -> Result<(), Error> {
    let deadline = Instant::now() + LIMIT;
    let key = Key::new("", name.as_str());
    let mut waits = Waits::new();
    loop {
        let reason = match read(api, &key).await {
            Ok(Some(object)) => {
                let condition = |wanted: &str| {
                    let all = object["status"]["conditions"].as_array().into_iter().flatten();
                    all.into_iter().find(|condition| condition["type"] == wanted)
                };
                let is =
                    |wanted: &str, status: &str| condition(wanted).is_some_and(|c| c["status"] == status);
                let text = |wanted: &str| {
                    let message = condition(wanted).and_then(|condition| condition["message"].as_str());
                    message.unwrap_or("no condition is set yet").to_owned()
                };
                if is("NamesAccepted", "False") {
                    return Err(Error::Names { name, reason: text("NamesAccepted") });
                }
                if is("Established", "True") {
                    return Ok(());
                }
                text("Established")
            }
            Ok(None) => "it was deleted".to_owned(),
            Err(error @ ApiError::Unavailable { .. }) => error.to_string(),
            Err(error) => return Err(Error::Refused { name, verb: "get", error }),
        };
        if Instant::now() >= deadline {
            return Err(Error::NotEstablished { name, seconds: LIMIT.as_secs(), reason });
        }
        sleep(waits.next()).await;
    }
}

/// Growing intervals.
struct Waits(Duration);

impl Waits {
    fn new() -> Waits {
        Waits(INTERVALS.0)
    }

    fn next(&mut self) -> Duration {
        let next = (self.0 * 2).min(INTERVALS.1);
        std::mem::replace(&mut self.0, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Value {
        custom_resource_definition(Kind::CiliumNode)
    }

    fn present(version: &str) -> Value {
        let mut object = wanted();
        object["metadata"]["labels"] = json!({VERSION_LABEL: version, "team": "infra"});
        object["metadata"]["resourceVersion"] = "7".into();
        object["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        object
    }

    #[test]
    fn only_older_definitions_are_replaced() {
        assert_eq!(step(&wanted(), None), Step::Create);
        for version in ["1.33.9", "1.33.10", "2.0.0", "v1.34"] {
            assert_eq!(step(&wanted(), Some(present(version))), Step::Leave, "{version}");
        }
        for version in ["1.33.8", "1.9", "", "newest"] {
            let Step::Update(object) = step(&wanted(), Some(present(version))) else { panic!("{version}") };
            assert_eq!(object["metadata"]["labels"], json!({VERSION_LABEL: "1.33.9", "team": "infra"}));
            assert_eq!(object["metadata"]["resourceVersion"], "7");
            let mut spec = wanted()["spec"].clone();
            spec["preserveUnknownFields"] = false.into();
            assert_eq!(object["spec"], spec);
        }
        let mut bare = present("1.33.9");
        bare["spec"]["versions"][0]["schema"] = Value::Null;
        assert!(matches!(step(&wanted(), Some(bare)), Step::Update(_)), "a version without schema");
        let mut bare = present("1.33.9");
        bare["metadata"]["labels"] = Value::Null;
        assert!(matches!(step(&wanted(), Some(bare)), Step::Update(_)), "no labels at all");
    }
}
