//! Properties of every pod: nothing in it changes, and a second injection has no effect.

use std::collections::BTreeSet;

use leasehold::webhook::Decision;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::pods;

const NAMES: [&str; 9] = [
    "app",
    "istio-proxy",
    "linkerd-proxy",
    "migrate",
    "cache",
    "logs",
    "leasehold",
    "leasehold-gate",
    "leasehold-fence",
];

/// A list that may be present, null, or absent.
fn list(element: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Value::Null)),
        4 => prop::collection::vec(element, 0..4).prop_map(|elements| Some(json!(elements))),
    ]
}

fn object(members: Vec<(&'static str, Option<Value>)>) -> Value {
    let members = members.into_iter();
    let there = members.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(there.collect::<Map<_, _>>())
}

fn variable() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["A", "LEASEHOLD_URL", "LEASEHOLD_SOCKET", "B"]);
    name.prop_map(|name| json!({"name": name, "value": "mine", "unknownField": 7}))
}

fn mount() -> impl Strategy<Value = Value> {
    let path = prop::sample::select(vec!["/data", "/var/run/leasehold", "/var/run/secrets"]);
    path.prop_map(|path| json!({"name": "data", "mountPath": path}))
}

fn resources() -> impl Strategy<Value = Option<Value>> {
    prop::sample::select(vec![
        None,
        Some(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
        Some(json!({"requests": {"cpu": "10m"}})),
        Some(
            json!({"requests": {"cpu": "1", "memory": "1024Mi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}),
        ),
    ])
}

fn container() -> impl Strategy<Value = Value> {
    let restarts = prop::sample::select(vec![None, Some(json!("Always"))]);
    let name = prop::sample::select(NAMES.to_vec());
    let port = prop::sample::select(vec![80, 7373, 7374, 7375, 9000]);
    let listens = list(port.prop_map(|port| json!({"containerPort": port})));
    let parts = (
        name,
        restarts,
        list(variable()),
        list(mount()),
        resources(),
        listens,
    );
    parts.prop_map(|(name, restarts, env, mounts, resources, listens)| {
        object(vec![
            ("name", Some(json!(name))),
            ("image", Some(json!("i"))),
            ("restartPolicy", restarts),
            ("env", env),
            ("volumeMounts", mounts),
            ("resources", resources),
            ("ports", listens.filter(|_| name == "app")),
            ("fieldOfTomorrow", Some(json!({"a": [1, {"b": null}]}))),
        ])
    })
}

/// Removes duplicate names: Kubernetes would refuse them, and they do not matter here.
fn unlike(list: Option<Value>) -> Option<Value> {
    let mut seen = BTreeSet::new();
    let mut list = list;
    if let Some(Value::Array(elements)) = &mut list {
        elements.retain(|element| seen.insert(element["name"].to_string()));
    }
    list
}

fn annotations() -> impl Strategy<Value = Option<Value>> {
    let mut sets = vec![None, Some(Value::Null), Some(json!({"theirs": "1"}))];
    for (name, value) in [
        ("config.leasehold.dev/unix-socket", "true"),
        ("config.leasehold.dev/ports", "api=9373,admin=9374"),
        ("config.leasehold.dev/gate-lock", "g"),
        ("config.leasehold.dev/fence-port", "8080"),
        ("config.leasehold.dev/elect", "a,b"),
        ("config.leasehold.dev/elect-always", "b,c"),
        ("config.leasehold.dev/resources", "{}"),
        ("leasehold.dev/sidecar-version", "theirs"),
    ] {
        sets.push(Some(json!({name: value})));
        sets.push(Some(
            json!({name: value, "config.leasehold.dev/unix-socket": "true"}),
        ));
    }
    prop::sample::select(sets)
}

fn pod() -> impl Strategy<Value = Value> {
    let labels = prop::sample::select(vec![
        None,
        Some(Value::Null),
        Some(json!({"leasehold.dev/inject": "true", "a": "b"})),
        Some(json!({"leasehold.dev/injected": "false"})),
    ]);
    let app = container().prop_filter("an app has a name of its own", |app| {
        app["name"] != "leasehold"
    });
    let volume = prop::sample::select(vec!["data", "leasehold-state", "kube-api-access-1"]);
    let volumes = list(volume.prop_map(|name| json!({"name": name, "emptyDir": {}})));
    let host = prop::sample::select(vec![None, None, Some(json!(true))]);
    let parts = (
        labels,
        annotations(),
        list(container()),
        list(app),
        volumes,
        host,
    );
    parts.prop_map(|(labels, annotations, inits, apps, volumes, host)| {
        json!({
            "metadata": object(vec![
                ("name", Some(json!("p"))),
                ("creationTimestamp", Some(Value::Null)),
                ("labels", labels),
                ("annotations", annotations),
            ]),
            "spec": object(vec![
                ("initContainers", unlike(inits)),
                ("containers", unlike(apps).filter(Value::is_array).or(Some(json!([])))),
                ("volumes", unlike(volumes)),
                ("hostNetwork", host),
                ("fieldOfTomorrow", Some(json!(["x"]))),
            ]),
        })
    })
}

/// Returns whether `after` contains everything in `before`: members by name, elements in order.
fn is_within(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Null, _) => true,
        (Value::Object(before), Value::Object(after)) => before.iter().all(|(name, value)| {
            let there = after.get(name);
            there.is_some_and(|there| is_within(value, there))
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            before
                .iter()
                .all(|value| rest.any(|there| is_within(value, there)))
        }
        _ => before == after,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn injection_removes_nothing_from_a_pod(pod in pod()) {
        let verdict = pods::decided(&pod);
        let Some(patch) = pods::patch(&verdict) else {
            return Ok(());
        };
        for operation in patch.as_array().unwrap() {
            prop_assert_eq!(&operation["op"], "add");
        }
        let made = pods::apply(&pod, &patch);
        prop_assert!(is_within(&pod, &made), "{pod}\nbecame {made}");
        prop_assert!(made != pod);
        // Compared by name, because two containers may have the same content.
        for list in ["containers", "initContainers", "volumes"] {
            let names = |pod: &Value| -> Vec<String> {
                let elements = pod["spec"][list].as_array().cloned().unwrap_or_default();
                elements.iter().map(|element| element["name"].to_string()).collect()
            };
            let (before, mut after) = (names(&pod), names(&made));
            after.retain(|name| before.contains(name));
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn injection_is_idempotent(pod in pod()) {
        let Some(made) = pods::made(&pod) else {
            return Ok(());
        };
        let again = pods::decided(&made);
        let decided = pods::decided(&pod).decision;
        let expected = match decided {
            Decision::Skip => Decision::Skip,
            _ => Decision::LeaveAlone,
        };
        prop_assert_eq!(again.decision, expected, "{}\nbecame {}", pod, made);
    }

    #[test]
    fn injected_pod_has_one_sidecar_and_every_app_its_url(pod in pod()) {
        let Some(made) = pods::made(&pod) else {
            return Ok(());
        };
        if matches!(pods::decided(&pod).decision, Decision::Skip) {
            return Ok(());
        }
        let inits = made["spec"]["initContainers"].as_array().unwrap();
        let ours = inits.iter().filter(|init| init["name"] == "leasehold");
        prop_assert_eq!(ours.count(), 1);
        for app in made["spec"]["containers"].as_array().unwrap() {
            let env = app["env"].as_array().unwrap();
            let urls = env.iter().filter(|variable| variable["name"] == "LEASEHOLD_URL");
            prop_assert!(urls.count() >= 1, "{}", app);
        }
    }
}
