//! Parses selectors of services.

use labels::ANY;

use super::cursor::{Field, Problems};
use super::selectors::LabelSelector;
use crate::selector::{Requirement, Selector};
use crate::services::{ServiceMatch, ServiceSelector};

/// Reads an element of `toServices`. The selector by labels takes precedence over the name, as in Cilium.
pub(super) fn service(field: &Field<'_>, problems: &mut Problems) -> Option<ServiceSelector> {
    let object = field.object(problems)?;
    object.check_names(problems, &["k8sService", "k8sServiceSelector"], &[]);
    let (by_name, by_labels) = (object.field("k8sService"), object.field("k8sServiceSelector"));
    let by_name = by_name.and_then(|field| field.object(problems)).map(|by_name| {
        by_name.check_names(problems, &["namespace", "serviceName"], &[]);
        let namespace = by_name.text("namespace", problems).into();
        let name = by_name.text("serviceName", problems);
        if name.is_empty() {
            problems.warn(&by_name.path_of("serviceName"), "selects no service", "name a service");
        }
        ServiceSelector { namespace, services: ServiceMatch::Name(name.into()) }
    });
    let Some(by_labels) = by_labels else {
        if by_name.is_none() {
            problems.warn(&field.path, "selects no service", "write k8sService or k8sServiceSelector");
        }
        return by_name;
    };
    let by_labels = by_labels.object(problems)?;
    by_labels.check_names(problems, &["namespace", "selector"], &[]);
    let namespace = by_labels.text("namespace", problems).into();
    let Some(selector) = by_labels.field("selector") else {
        problems.add(&by_labels.path_of("selector"), "missing", "`selector: {}` selects all services");
        return None;
    };
    // Services have labels of one source only: that of a key is not compared.
    let requirements = LabelSelector::read(&selector, problems)?.into_requirements();
    let any_source = |requirement| Requirement { source: ANY.to_owned(), ..requirement };
    let selector = Selector::Labels(requirements.map(any_source).collect());
    Some(ServiceSelector { namespace, services: ServiceMatch::Labels(selector) })
}
