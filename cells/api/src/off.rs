//! What operations answer that no cell claims: as the original does with that feature off.

use api_models::{BpfMapList, CgroupDumpMetadata, Identity, NameManager, Policy};

use crate::operation::Operation;
use crate::request::Request;
use crate::response::Response;
use crate::route::Route;

/// The identities that exist before any is allocated.
const RESERVED: [(i64, &[&str]); 10] = [
    (1, &["reserved:host"]),
    (2, &["reserved:world"]),
    (3, &["reserved:unmanaged"]),
    (4, &["reserved:health"]),
    (5, &["reserved:init"]),
    (6, &["reserved:remote-node"]),
    (7, &["reserved:kube-apiserver", "reserved:remote-node"]),
    (8, &["reserved:ingress"]),
    (9, &["reserved:world-ipv4"]),
    (10, &["reserved:world-ipv6"]),
];

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
        | GetIdentityEndpoints => Response::json(200, &empty_list),
        GetPolicy => Response::json(200, &Policy { policy: "[]".to_owned(), revision: 1 }),
        GetFqdnCache | GetFqdnCacheID | GetIP => Response::empty(404),
        DeleteFqdnCache => Response::empty(200),
        GetFqdnNames => {
            Response::json(200, &NameManager { fqdn_policy_selectors: vec![].into(), ..Default::default() })
        }
        GetIdentity => Response::json(200, &RESERVED.map(identity)),
        GetIdentityID => identity_by_id(request.param("id")),
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
        DeleteEndpoint => Response::error(404, "endpoints not found"),
        PostIpam => Response::error(502, "address allocation is not part of this agent"),
        PostIpamIP | DeleteIpamIP => Response::empty(501),
        PutEndpointID => Response::error(500, "endpoints are not part of this agent"),
        GetClusterNodes | GetHealthz | GetConfig | PatchConfig | GetDebuginfo => {
            Response::error(501, format!("{} is not part of this agent", request.operation.name()))
        }
    }
}

fn identity((id, labels): (i64, &[&str])) -> Identity {
    let labels = labels.iter().map(|&label| label.to_owned()).collect();
    Identity { id, labels, ..Default::default() }
}

fn identity_by_id(id: &str) -> Response {
    let Ok(id) = id.parse::<u32>() else {
        return Response::empty(400);
    };
    match RESERVED.into_iter().find(|(known, _)| *known == i64::from(id)) {
        Some(reserved) => Response::json(200, &identity(reserved)),
        None => Response::empty(404),
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
    async fn operations_of_missing_cells_answer_as_with_the_feature_off() {
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

    #[tokio::test]
    async fn reserved_identities_exist_without_an_allocator() {
        let by_id = |id: &'static str| async move { get(Operation::GetIdentityID, &[("id", id)]).await };
        assert_eq!(by_id("1").await, (200, "{\"id\":1,\"labels\":[\"reserved:host\"]}\n".to_owned()));
        assert_eq!(by_id("256").await, (404, String::new()));
        assert_eq!(by_id("notanumber").await, (400, String::new()));
        let (status, all) = get(Operation::GetIdentity, &[]).await;
        assert_eq!(status, 200);
        assert_eq!(serde_json::from_str::<Vec<Identity>>(&all).unwrap().len(), 10);
    }
}
