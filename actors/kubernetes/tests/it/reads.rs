//! Lists and tables.

use serde_json::{Value, json};

use crate::world::*;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                     application/json";

fn names(list: &Reply) -> Vec<String> {
    let items = list.at("/items").as_array().cloned().expect("a list");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

fn filled() -> Server {
    let mut server = Server::new();
    for (namespace, name, tier) in [("a", "one", "front"), ("a", "two", "back"), ("b", "one", "front")] {
        let target = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        server.post(&target, json!({"metadata": {"name": name, "labels": {"tier": tier}}})).expect(201);
    }
    server.post("/api/v1/namespaces/a/configmaps", json!({"metadata": {"name": "map"}})).expect(201);
    server
}

#[test]
fn lists_cover_one_namespace_or_all() {
    let mut server = filled();
    let all = server.get("/apis/coordination.k8s.io/v1/leases?limit=1").expect(200);
    assert_eq!(names(&all), ["one", "two", "one"], "a limit may be ignored");
    assert_eq!((all.at("/kind"), all.revision()), (json!("LeaseList"), server.tables.revision.0));
    assert_eq!(all.at("/items/0/kind"), "Lease");
    assert_eq!(names(&server.get("/apis/coordination.k8s.io/v1/namespaces/a/leases")), ["one", "two"]);
    let none = server.get("/apis/coordination.k8s.io/v1/namespaces/zzz/leases").expect(200);
    assert_eq!(none.at("/items"), json!([]), "an empty list is present");
    assert_eq!(names(&server.get("/api/v1/configmaps")), ["map"]);
}

#[test]
fn lists_are_selected_by_labels_and_fields() {
    let mut server = filled();
    let mut list = |query: &str| names(&server.get(format!("/apis/coordination.k8s.io/v1/leases?{query}")).expect(200));
    assert_eq!(list("labelSelector=tier%20in%20(front,middle)"), ["one", "one"]);
    assert_eq!(list("labelSelector=tier!=front"), ["two"]);
    assert_eq!(list("fieldSelector=metadata.namespace%3Da,metadata.name%3Done"), ["one"]);
    assert_eq!(
        server.get("/apis/coordination.k8s.io/v1/leases?fieldSelector=spec.a%3Db").expect(400).reason(),
        "BadRequest"
    );
    assert_eq!(
        server.get("/apis/coordination.k8s.io/v1/leases?labelSelector=a%3D%3D%3D").expect(400).reason(),
        "BadRequest"
    );
}

#[test]
fn exact_list_is_of_its_revision_or_refused() {
    let mut server = filled();
    let now = server.tables.revision.0;
    let target = |revision: u64| {
        format!("/apis/coordination.k8s.io/v1/leases?resourceVersionMatch=Exact&resourceVersion={revision}")
    };
    server.get(target(now)).expect(200);
    assert_eq!(server.get(target(now - 1)).expect(410).reason(), "Expired");
    let future = server.get(target(now + 1)).expect(504);
    assert_eq!(future.at("/details/causes/0/reason"), "ResourceVersionTooLarge");
}

#[test]
fn what_is_missing_is_not_found() {
    let mut server = filled();
    let missing = server.get("/apis/coordination.k8s.io/v1/namespaces/a/leases/x").expect(404);
    assert_eq!((missing.reason(), missing.at("/details/kind")), (json!("NotFound"), json!("leases")));
    assert_eq!(missing.at("/message"), "leases.coordination.k8s.io \"x\" not found");
}

#[test]
fn kubectl_gets_tables() {
    let mut server = Server::new();
    server.held("x", "me");
    server.now += 60_000;
    let list = server.send(&request("GET", BASE, Value::Null).accepting(TABLE)).expect(200);
    assert_eq!((list.at("/kind"), list.at("/apiVersion")), (json!("Table"), json!("meta.k8s.io/v1")));
    let columns: Vec<Value> =
        list.at("/columnDefinitions").as_array().unwrap().iter().map(|c| c["name"].clone()).collect();
    assert_eq!(columns, ["Name", "Holder", "Age"]);
    assert_eq!(list.at("/rows/0/cells"), json!(["x", "me", "61s"]));
    assert_eq!(list.at("/rows/0/object/kind"), "PartialObjectMetadata");
    assert_eq!(list.at("/rows/0/object/metadata/name"), "x");
    assert_eq!(list.at("/rows/0/object/spec"), Value::Null);
    assert_eq!(list.revision(), server.tables.revision.0);

    let one = server.send(&request("GET", format!("{BASE}/x?includeObject=Object"), Value::Null).accepting(TABLE));
    assert_eq!(one.clone().expect(200).at("/rows/0/object/spec/holderIdentity"), "me");
    assert_eq!(one.revision(), server.lease("x").meta.revision.0);
    let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let beta = server.send(&request("GET", format!("{BASE}?includeObject=None"), Value::Null).accepting(old));
    assert_eq!((beta.at("/apiVersion"), beta.at("/rows/0/object")), (json!("meta.k8s.io/v1beta1"), Value::Null));
}

#[test]
fn tables_of_the_other_kinds_have_columns_of_their_own() {
    let mut server = Server::new();
    let spec = json!({"leaseName": "l", "binaryVersion": "1.2.3", "emulationVersion": "1.2.0", "strategy": "OldestEmulationVersion"});
    server.post(CANDIDATES, json!({"metadata": {"name": "c"}, "spec": spec})).expect(201);
    server.post(MAPS, json!({"metadata": {"name": "m"}, "data": {"a": "1"}, "binaryData": {"b": "AA=="}})).expect(201);
    let cells = |server: &mut Server, target: &str| {
        server.send(&request("GET", target, Value::Null).accepting(TABLE)).at("/rows/0/cells")
    };
    assert_eq!(cells(&mut server, CANDIDATES), json!(["c", "l", "1.2.3", "1.2.0", "2s"]));
    assert_eq!(cells(&mut server, MAPS), json!(["m", "2", "2s"]));
}

#[test]
fn metadata_only_is_answered_on_request() {
    let mut server = Server::new();
    server.held("x", "me");
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = server.send(&request("GET", BASE, Value::Null).accepting(accept)).expect(200);
    assert_eq!(list.at("/kind"), "PartialObjectMetadataList");
    assert_eq!((list.at("/items/0/kind"), list.at("/items/0/spec")), (json!("PartialObjectMetadata"), Value::Null));
}
