//! The choice of a pod's pool: a pure function of the objects.

use ipam::{Error, Family};
use k8s_tables::Row;
use k8s_types::StringMap;
use k8s_types::cilium::CiliumPodIPPool;
use k8s_types::core::{Namespace, Pod};
use k8s_types::selector::LabelRequirements;
use k8s_types::{LabelSelector, names};

const POOL: &str = "ipam.cilium.io/ip-pool";
const IPV4_POOL: &str = "ipam.cilium.io/ipv4-pool";
const IPV6_POOL: &str = "ipam.cilium.io/ipv6-pool";
const REQUIRE_MATCH: &str = "ipam.cilium.io/require-pool-match";

/// The objects that decide about a pod's pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) pod: Option<&'a Pod>,
    pub(crate) namespace: Option<&'a Namespace>,
}

/// Returns namespace and name of the pod that an owner is.
pub(crate) fn pod_name(owner: &str) -> Option<(&str, &str)> {
    let (namespace, name) = owner.split_once('/')?;
    let is_valid = |part: &str| names::dns_subdomain(part).is_ok();
    (is_valid(namespace) && is_valid(name)).then_some((namespace, name))
}

/// Returns the pool of a pod; none for the default one.
pub(crate) fn choose<'p>(
    (namespace_name, name): (&str, &str),
    family: Family,
    facts: Facts<'_>,
    pools: impl Iterator<Item = &'p Row<CiliumPodIPPool>>,
) -> Result<Option<String>, Error> {
    let missing = |kind, name: String| Error::NoObject { kind, name };
    let pod = facts.pod.ok_or_else(|| missing("Pod", format!("{namespace_name}/{name}")))?;
    let of_pod = &pod.metadata.annotations;
    if let Some(pool) = annotated(of_pod, family) {
        return Ok(Some(pool));
    }
    let namespace = facts.namespace.ok_or_else(|| missing("Namespace", namespace_name.to_owned()))?;
    let of_namespace = &namespace.metadata.annotations;
    if let Some(pool) = annotated(of_namespace, family) {
        return Ok(Some(pool));
    }
    let mut selecting: Vec<&str> =
        pools.filter(|pool| selects(pool, pod, namespace)).map(|pool| pool.metadata.name.as_str()).collect();
    selecting.sort_unstable();
    let is_required =
        |annotations: &StringMap| annotations.get(REQUIRE_MATCH).is_some_and(|value| value == "true");
    let pod_name = || format!("{namespace_name}/{name}");
    match selecting[..] {
        [pool] => Ok(Some(pool.to_owned())),
        [] if is_required(of_pod) || is_required(of_namespace) => {
            Err(Error::NoPoolMatches { pod: pod_name() })
        }
        [] => Ok(None),
        _ => Err(Error::SeveralPools { pod: pod_name(), pools: selecting.join(", ") }),
    }
}

fn annotated(annotations: &StringMap, family: Family) -> Option<String> {
    let of_family = match family {
        Family::V4 => IPV4_POOL,
        Family::V6 => IPV6_POOL,
    };
    let value = |key| annotations.get(key).filter(|value| !value.is_empty());
    value(of_family).or_else(|| value(POOL)).map(ToString::to_string)
}

/// Whether a pool has selectors and all of them select the pod. An invalid selector selects nothing.
fn selects(pool: &CiliumPodIPPool, pod: &Pod, namespace: &Namespace) -> bool {
    let (of_pod, of_namespace) = (&pool.spec.pod_selector, &pool.spec.namespace_selector);
    let meta = &pod.metadata;
    let pod_label = |key: &str| match key {
        "io.kubernetes.pod.namespace" => Some(meta.namespace.as_str()),
        "io.kubernetes.pod.name" => Some(meta.name.as_str()),
        key => meta.labels.get(key).map(AsRef::as_ref),
    };
    let namespace_label = |key: &str| namespace.metadata.labels.get(key).map(AsRef::as_ref);
    let requirements = |selector: &LabelSelector| LabelRequirements::try_from(selector).ok();
    let matches_pod = |selector| requirements(selector).is_some_and(|all| all.matches(pod_label));
    let matches_namespace = |selector| requirements(selector).is_some_and(|all| all.matches(namespace_label));
    (of_pod.is_some() || of_namespace.is_some())
        && of_pod.as_ref().is_none_or(matches_pod)
        && of_namespace.as_ref().is_none_or(matches_namespace)
}

#[cfg(test)]
mod tests {
    use k8s_types::decode;
    use serde_json::{Value, json};

    use super::*;

    fn pod(labels: &Value, annotations: &Value) -> Pod {
        let object = json!({"metadata": {"name": "web", "namespace": "shop", "labels": labels, "annotations": annotations}});
        decode(object.to_string().as_bytes()).unwrap()
    }

    fn namespace(labels: &Value, annotations: &Value) -> Namespace {
        let object = json!({"metadata": {"name": "shop", "labels": labels, "annotations": annotations}});
        decode(object.to_string().as_bytes()).unwrap()
    }

    fn pool(name: &str, spec: &Value) -> Row<CiliumPodIPPool> {
        Row::of(decode(json!({"metadata": {"name": name}, "spec": spec}).to_string().as_bytes()).unwrap())
    }

    fn chosen(
        family: Family,
        pod: Option<&Pod>,
        namespace: Option<&Namespace>,
        pools: &[Row<CiliumPodIPPool>],
    ) -> String {
        match choose(("shop", "web"), family, Facts { pod, namespace }, pools.iter()) {
            Ok(pool) => pool.unwrap_or_else(|| "-".into()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn annotations_of_the_pod_then_of_the_namespace_then_selectors_decide() {
        let none = json!({});
        let (generic, v4) = (json!({POOL: "a"}), json!({POOL: "a", IPV4_POOL: "b", IPV6_POOL: ""}));
        let plain = namespace(&none, &none);
        let marked = namespace(&json!({"tier": "x"}), &json!({IPV6_POOL: "n6", POOL: "n"}));
        let both = |pod: &Pod, namespace: &Namespace, pools: &[Row<CiliumPodIPPool>]| {
            [Family::V4, Family::V6].map(|family| chosen(family, Some(pod), Some(namespace), pools))
        };
        let selected = pool("s", &json!({"podSelector": {"matchLabels": {"app": "web"}}}));
        let web = pod(&json!({"app": "web"}), &none);
        assert_eq!(both(&pod(&none, &generic), &marked, &[]), ["a", "a"]);
        assert_eq!(both(&pod(&none, &v4), &marked, &[]), ["b", "a"]);
        assert_eq!(both(&web, &marked, std::slice::from_ref(&selected)), ["n", "n6"]);
        assert_eq!(both(&web, &plain, std::slice::from_ref(&selected)), ["s", "s"]);
        assert_eq!(both(&pod(&none, &none), &plain, &[selected]), ["-", "-"]);
    }

    #[test]
    fn selectors_match_labels_and_names_of_pod_and_namespace() {
        let none = json!({});
        let (web, shop) = (pod(&json!({"app": "web"}), &none), namespace(&json!({"tier": "x"}), &none));
        let matching = |spec: &Value| chosen(Family::V4, Some(&web), Some(&shop), &[pool("p", spec)]);
        let by = |labels: Value| json!({"matchLabels": labels});
        assert_eq!(matching(&none), "-", "a pool without selectors is for annotations only");
        assert_eq!(matching(&json!({"podSelector": {}})), "p");
        assert_eq!(
            matching(&json!({"podSelector": by(json!({"io.kubernetes.pod.namespace": "shop"}))})),
            "p"
        );
        assert_eq!(matching(&json!({"podSelector": by(json!({"io.kubernetes.pod.name": "other"}))})), "-");
        assert_eq!(matching(&json!({"namespaceSelector": by(json!({"tier": "x"}))})), "p");
        let both =
            json!({"namespaceSelector": by(json!({"tier": "x"})), "podSelector": by(json!({"app": "db"}))});
        assert_eq!(matching(&both), "-", "both must match");
        let invalid = json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}});
        assert_eq!(matching(&invalid), "-");
    }

    #[test]
    fn what_is_unknown_or_ambiguous_is_an_error() {
        let none = json!({});
        let (web, shop) = (pod(&none, &none), namespace(&none, &none));
        let all = json!({"podSelector": {}});
        let two = [pool("b", &all), pool("a", &all)];
        let several = chosen(Family::V4, Some(&web), Some(&shop), &two);
        assert!(several.starts_with("multiple CiliumPodIPPools match pod shop/web: a, b"), "{several}");
        assert_eq!(chosen(Family::V4, None, Some(&shop), &[]), r#"resource Pod "shop/web" not found"#);
        assert_eq!(chosen(Family::V4, Some(&web), None, &[]), r#"resource Namespace "shop" not found"#);
        for (pod, namespace) in [
            (pod(&none, &json!({REQUIRE_MATCH: "true"})), shop.clone()),
            (web.clone(), namespace(&none, &json!({REQUIRE_MATCH: "true"}))),
        ] {
            let refused = chosen(Family::V4, Some(&pod), Some(&namespace), &[]);
            assert!(refused.starts_with("no CiliumPodIPPool matches pod shop/web"), "{refused}");
        }
        let other = pod(&none, &json!({REQUIRE_MATCH: "false"}));
        assert_eq!(chosen(Family::V4, Some(&other), Some(&shop), &[]), "-");
    }

    #[test]
    fn owners_that_are_no_pods_have_no_choice() {
        assert_eq!(pod_name("shop/web-0"), Some(("shop", "web-0")));
        for owner in ["router", "health", "", "a/B", "a/b/c", "/web"] {
            assert_eq!(pod_name(owner), None, "{owner}");
        }
    }
}
