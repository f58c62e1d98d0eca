//! Answers of operations that no cell claims: those of Cilium with the feature disabled.

mod fqdn;

pub use fqdn::refused_name_filters;

use api_models::{BpfMapList, CgroupDumpMetadata, NameManager, Policy};

use crate::operation::Operation;
use crate::request::Request;
use crate::response::Response;
use crate::route::Route;

pub(crate) fn route(operation: Operation) -> Route {
    Route::new(operation, |request| std::future::ready(answer(&request)))
}

fn answer(request: &Request) -> Response {
    use Operation::*;
    let empty_list: [(); 0] = [];
    match request.operation {
        GetBgpPeers | GetBgpRoutes | GetBgpRoutePolicies => {
            Response::error(501, "BGP control plane is disabled")
        }
        GetPrefilter | PatchPrefilter | DeletePrefilter => {
            Response::error(500, "prefilter is not enabled in daemon")
        }
        GetLrp
        | GetService
        | GetPolicySelectors
        | GetPolicySubjectSelectors
        | GetEndpoint
        | GetNodeIds
        | GetIdentity
        | GetIdentityEndpoints => Response::json(200, &empty_list),
        GetPolicy => Response::json(200, &Policy { policy: "[]".to_owned(), revision: 1 }),
        GetIP => Response::empty(404),
        GetFqdnCache | GetFqdnCacheID => fqdn::checked(request, 404),
        DeleteFqdnCache => fqdn::checked(request, 200),
        GetFqdnNames => {
            Response::json(200, &NameManager { fqdn_policy_selectors: vec![].into(), ..Default::default() })
        }
        GetCgroupDumpMetadata => Response::json(200, &CgroupDumpMetadata::default()),
        GetMap => Response::json(200, &BpfMapList { maps: vec![].into() }),
        GetMapName
        | GetMapNameEvents
        | GetEndpointID
        | DeleteEndpointID
        | PatchEndpointID
        | GetEndpointIDConfig
        | PatchEndpointIDConfig
        | GetEndpointIDLabels
        | PatchEndpointIDLabels
        | GetEndpointIDLog
        | GetEndpointIDHealthz => Response::empty(404),
        GetIdentityID => Response::empty(if request.param("id").parse::<u32>().is_ok() { 404 } else { 400 }),
        DeleteEndpoint => Response::error(404, "endpoints not found"),
        PostIpam => Response::error(502, "address allocation is not part of this agent"),
        PostIpamIP | DeleteIpamIP => Response::empty(501),
        PutEndpointID => Response::error(500, "endpoints are not part of this agent"),
        GetClusterNodes | GetHealthz | GetConfig | PatchConfig | GetDebuginfo => {
            Response::error(501, format!("{} is not part of this agent", request.operation.name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(operation: Operation, params: &[(&'static str, &str)]) -> (u16, String) {
        let response = route(operation).call(Request::new(operation, params)).await;
        let status = response.status().as_u16();
        (status, String::from_utf8(response.body().await.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn operations_of_missing_cells_answer_as_with_the_feature_disabled() {
        use Operation::*;
        for (operation, status, body) in [
            (GetBgpPeers, 501, "\"BGP control plane is disabled\"\n"),
            (GetBgpRoutes, 501, "\"BGP control plane is disabled\"\n"),
            (GetPrefilter, 500, "\"prefilter is not enabled in daemon\"\n"),
            (GetLrp, 200, "[]\n"),
            (GetService, 200, "[]\n"),
            (GetPolicySelectors, 200, "[]\n"),
            (GetPolicy, 200, "{\"policy\":\"[]\",\"revision\":1}\n"),
            (GetFqdnCache, 404, ""),
            (GetFqdnNames, 200, "{\"DNSPollNames\":null,\"FQDNPolicySelectors\":[]}\n"),
            (GetCgroupDumpMetadata, 200, "{\"pod-metadatas\":null}\n"),
            (GetIP, 404, ""),
        ] {
            assert_eq!(get(operation, &[]).await, (status, body.to_owned()), "{}", operation.name());
        }
    }
}
