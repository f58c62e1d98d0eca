//! The endpoint operations of the REST API.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use api::{Operation, Request, Response, Route};
use api_models as models;
use serde::{Serialize, Serializer};

use crate::api::model;
use crate::api::policy_model::PolicyView;
use crate::model::endpoint::Endpoint;
use crate::model::error::{BadId, Invalid};
use crate::model::id::Name;
use crate::requests::service::{Endpoints, Refused};
use labels::Labels;

/// Returns the routes of all operations.
pub(crate) fn routes(endpoints: &Arc<Endpoints>) -> Vec<Route> {
    vec![
        read(endpoints, Operation::GetEndpoint, list),
        read(endpoints, Operation::GetEndpointID, get),
        read(endpoints, Operation::GetEndpointIDConfig, get_config),
        read(endpoints, Operation::GetEndpointIDLabels, get_labels),
        read(endpoints, Operation::GetEndpointIDLog, get_log),
        read(endpoints, Operation::GetEndpointIDHealthz, get_healthz),
        read(endpoints, Operation::GetIdentityEndpoints, identities),
        write(endpoints, Operation::PutEndpointID, put),
        write(endpoints, Operation::PatchEndpointID, patch),
        write(endpoints, Operation::DeleteEndpointID, delete),
        write(endpoints, Operation::DeleteEndpoint, delete_batch),
        write(endpoints, Operation::PatchEndpointIDConfig, patch_config),
        write(endpoints, Operation::PatchEndpointIDLabels, patch_labels),
    ]
}

/// Returns a route that answers from a snapshot, without waiting.
fn read(
    endpoints: &Arc<Endpoints>,
    operation: Operation,
    handler: fn(&Endpoints, &Request) -> Response,
) -> Route {
    let endpoints = endpoints.clone();
    Route::new(operation, move |request| std::future::ready(handler(&endpoints, &request)))
}

/// Returns a route that waits until the request is fulfilled.
fn write<F>(endpoints: &Arc<Endpoints>, operation: Operation, handler: fn(Endpoints, Request) -> F) -> Route
where
    F: Future<Output = Response> + Send + 'static,
{
    let endpoints = endpoints.clone();
    Route::new(operation, move |request| handler((*endpoints).clone(), request))
}

/// `PUT /endpoint/{id}`. The id of the path is ignored: the id of the body is used, or a free one if that is zero.
pub(crate) async fn put(endpoints: Endpoints, request: Request) -> Response {
    let body: models::EndpointChangeRequest = match request.json() {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    match endpoints.create(&body).await {
        Ok(endpoint) => Response::json(201, &whole(&endpoints, &endpoint)),
        Err(error) => refusal(&error, 400),
    }
}

/// `PATCH /endpoint/{id}`
pub(crate) async fn patch(endpoints: Endpoints, request: Request) -> Response {
    let body: models::EndpointChangeRequest = match request.json() {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    match name(&request) {
        Err(error) => Response::error(400, error.to_string()),
        Ok(name) => done(endpoints.patch(&name, &body).await, 400),
    }
}

/// `GET /endpoint/{id}`
pub(crate) fn get(endpoints: &Endpoints, request: &Request) -> Response {
    show(endpoints, request, |endpoint| Response::json(200, &whole(endpoints, endpoint)))
}

/// `DELETE /endpoint/{id}`
pub(crate) async fn delete(endpoints: Endpoints, request: Request) -> Response {
    match name(&request) {
        Err(error) => Response::error(400, error.to_string()),
        Ok(name) => match endpoints.delete(&name).await {
            Err(error @ Refused::NotFound) => Response::error(404, error.to_string()),
            deleted => removed(deleted),
        },
    }
}

/// `GET /endpoint`, all or those with the labels of the body.
pub(crate) fn list(endpoints: &Endpoints, request: &Request) -> Response {
    let wanted = match request.body.is_empty() {
        true => None,
        false => match serde_json::from_slice::<Option<Vec<String>>>(&request.body) {
            Ok(texts) => texts.map(|texts| Labels::parse(texts.iter().map(String::as_str))),
            Err(error) => {
                return Response::error(400, format!("parsing labels body failed, because {error}"));
            }
        },
    };
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let matches = |endpoint: &Endpoint| {
        wanted.as_ref().is_none_or(|wanted| endpoint.record.op_labels.identity().contains_all(wanted))
    };
    let list: Vec<&Endpoint> =
        table.all(&snapshot).map(|endpoint| &**endpoint).filter(|endpoint| matches(endpoint)).collect();
    match list.is_empty() && wanted.is_some() {
        true => Response::empty(404),
        false => Response::json(200, &Whole { endpoints, list }),
    }
}

/// Endpoints, serialized one by one: with many rules, the models of all of them at once would take much memory.
struct Whole<'a> {
    endpoints: &'a Endpoints,
    list: Vec<&'a Endpoint>,
}

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.list.iter().map(|endpoint| whole(self.endpoints, endpoint)))
    }
}

/// `GET /identity/endpoints`: the identities that endpoints have, and how many have each.
pub(crate) fn identities(endpoints: &Endpoints, _request: &Request) -> Response {
    let table = endpoints.table();
    let snapshot = table.snapshot();
    let mut identities = BTreeMap::new();
    for endpoint in table.all(&snapshot) {
        if let Some(identity) = model::identity(&endpoint.record) {
            let id = identity.id;
            let first = models::IdentityEndpoints { identity: Some(identity), ref_count: 0 };
            identities.entry(id).or_insert(first).ref_count += 1;
        }
    }
    Response::json(200, &identities.into_values().collect::<Vec<_>>())
}

/// `DELETE /endpoint`, all of a container.
pub(crate) async fn delete_batch(endpoints: Endpoints, request: Request) -> Response {
    let body: models::EndpointBatchDeleteRequest = match request.json() {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    if body.container_id.is_empty() {
        return Response::error(400, "invalid container id");
    }
    match endpoints.delete_container(&body.container_id).await {
        Err(Refused::NotFound) => Response::error(404, "endpoints not found"),
        deleted => removed(deleted),
    }
}

/// `GET /endpoint/{id}/config`
pub(crate) fn get_config(endpoints: &Endpoints, request: &Request) -> Response {
    show(endpoints, request, |endpoint| {
        let realized = Some(model::configuration(&endpoint.record));
        let status = models::EndpointConfigurationStatus { realized, ..Default::default() };
        Response::json(200, &status)
    })
}

/// `PATCH /endpoint/{id}/config`
pub(crate) async fn patch_config(endpoints: Endpoints, request: Request) -> Response {
    let body: models::EndpointConfigurationSpec = match request.json() {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let name = match name(&request) {
        Ok(name) => name,
        Err(error) => return Response::error(400, error.to_string()),
    };
    let options = body.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let labels = body.label_configuration.as_ref().map(|labels| labels.user.as_slice());
    done(endpoints.configure(&name, options, labels).await, 400)
}

/// `GET /endpoint/{id}/labels`
pub(crate) fn get_labels(endpoints: &Endpoints, request: &Request) -> Response {
    show(endpoints, request, |endpoint| Response::json(200, &model::labels(&endpoint.record)))
}

/// `PATCH /endpoint/{id}/labels`
pub(crate) async fn patch_labels(endpoints: Endpoints, request: Request) -> Response {
    let body: models::LabelConfigurationSpec = match request.json() {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    match name(&request) {
        Err(error) => Response::error(400, error.to_string()),
        Ok(name) => match endpoints.relabel(&name, &body.user).await {
            // Cilium capitalizes the error texts of this operation.
            Err(Refused::Invalid(Invalid::ReservedLabels(labels))) => {
                Response::error(500, format!("Not allowed to add reserved labels: {labels}"))
            }
            Err(Refused::Invalid(Invalid::GeneratedLabels(labels))) => {
                Response::error(500, format!("Not allowed to add generated labels: {labels}"))
            }
            relabelled => done(relabelled, 500),
        },
    }
}

/// `GET /endpoint/{id}/log`
pub(crate) fn get_log(endpoints: &Endpoints, request: &Request) -> Response {
    show(endpoints, request, |endpoint| Response::json(200, &model::log(endpoint)))
}

/// `GET /endpoint/{id}/healthz`
pub(crate) fn get_healthz(endpoints: &Endpoints, request: &Request) -> Response {
    show(endpoints, request, |endpoint| {
        Response::json(200, &model::health(endpoint, &PolicyView::of(&endpoints.context, endpoint)))
    })
}

fn whole(endpoints: &Endpoints, endpoint: &Endpoint) -> models::Endpoint {
    let context = &endpoints.context;
    model::endpoint(endpoint, &PolicyView::of(context, endpoint), &context.uuids)
}

fn show(endpoints: &Endpoints, request: &Request, answer: impl FnOnce(&Endpoint) -> Response) -> Response {
    match name(request) {
        Err(error) => Response::error(400, error.to_string()),
        Ok(name) => match endpoints.find(&name) {
            None => Response::empty(404),
            Some(endpoint) => answer(&endpoint),
        },
    }
}

fn name(request: &Request) -> Result<Name, BadId> {
    request.param("id").parse()
}

fn done(result: Result<(), Refused>, invalid: u16) -> Response {
    match result {
        Ok(()) => Response::empty(200),
        Err(error) => refusal(&error, invalid),
    }
}

fn removed(result: Result<usize, Refused>) -> Response {
    match result {
        Ok(0) => Response::empty(200),
        Ok(errors) => Response::json(206, &errors),
        Err(error) => refusal(&error, 400),
    }
}

/// The answer to a request that is not fulfilled; `invalid` is the operation's status for bad values.
fn refusal(error: &Refused, invalid: u16) -> Response {
    match error {
        Refused::Invalid(_) | Refused::Option(_) => Response::error(invalid, error.to_string()),
        Refused::NotFound => Response::empty(404),
        Refused::Memory(_) => Response::error(429, error.to_string()),
        Refused::NotOpen(_) => Response::error(503, error.to_string()),
        Refused::Address(_)
        | Refused::Identity(_)
        | Refused::Regeneration(_)
        | Refused::Deleted
        | Refused::TimedOut
        | Refused::Update { .. } => Response::error(500, error.to_string()),
    }
}
