//! The API of older leader election sidecars, so that apps can move without a change. The retired
//! leader-elector returns `{"name": …}` at `GET /`. NAIS' elector adds `last_update`, and a stream
//! at `/sse`.
//!
//! Both only name the leader, without a token and a validity. An app that relies on it may act when
//! another pod leads already. The own pod is named only while it leads by its own deadline. Another
//! pod is named only if the store named it within a session TTL.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use http::header::CACHE_CONTROL;
use serde::Serialize;

use super::dto::time_text;
use super::error::Problem;
use super::serve::Connection;
use super::{Api, Arrived, HttpOptions, with_middleware};
use crate::agent::{Agent, ElectionView};
use crate::protocol::election::ElectionName;
use crate::protocol::time::WallTime;

/// Which older API is served, for which election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compat {
    /// The election; these APIs have only one.
    pub election: ElectionName,
    /// Whether NAIS' elector is served: with `last_update` and the stream.
    pub nais: bool,
}

/// Returns the older API of an agent that runs for one election.
pub fn compat_router(agent: Agent, options: HttpOptions, compat: Compat) -> Router {
    let mut routes = Router::new()
        .route("/", get(leader))
        // The older sidecars answer every path in the same way.
        .route("/{*anywhere}", get(leader));
    if compat.nais {
        routes = routes.route("/sse", get(stream));
    }
    let routes = routes.layer(Extension(Arc::new(compat)));
    with_middleware(routes, Api::new(agent, options))
}

/// The leader; an empty name if no leader is known.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Leader {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_update: Option<String>,
}

impl Leader {
    fn of(view: &ElectionView, agent: &Agent, compat: &Compat) -> Self {
        let (own_pod, ttl) = (&*agent.pod().name, agent.session_ttl());
        Self::from_view(view, own_pod, ttl, compat)
    }

    fn from_view(view: &ElectionView, own_pod: &str, ttl: Duration, compat: &Compat) -> Self {
        let leads = view.lead.is_some();
        // A leader that was read so long ago may have lost the lead without a renewal.
        let is_old = view.age.is_some_and(|age| age >= ttl);
        let holder = view.holder.as_ref().filter(|_| leads || !is_old);
        // The store's answer about the own pod does not mean that it leads.
        match holder.filter(|holder| leads || holder.pod != own_pod) {
            None => Self::default(),
            Some(holder) => Self {
                name: holder.pod.clone(),
                last_update: compat.nais.then(|| whole_seconds(holder.acquired_at)),
            },
        }
    }

    fn frame(&self) -> String {
        // Strings with constant field names are always valid JSON.
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("data: {text}\n\n")
    }
}

/// The times of NAIS have no fractions.
fn whole_seconds(time: WallTime) -> String {
    time_text(WallTime(time.0 - time.0.rem_euclid(1_000_000)))
}

async fn leader(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    Extension(compat): Extension<Arc<Compat>>,
) -> Response {
    let view = api.agent.election(&compat.election, arrived).await;
    // The older sidecars return an empty name before the first election.
    let leader = view.map_or_else(
        |_unknown| Leader::default(),
        |view| Leader::of(&view, &api.agent, &compat),
    );
    ([(CACHE_CONTROL, "no-store")], Json(leader)).into_response()
}

async fn stream(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    Extension(compat): Extension<Arc<Compat>>,
    connection: Option<Extension<Connection>>,
) -> Result<Response, Problem> {
    let events = api.agent.election_events(&compat.election, arrived).await?;
    let agent = api.agent.clone();
    let frames = futures::stream::unfold((events, None), move |(mut events, last)| {
        let (agent, compat) = (agent.clone(), compat.clone());
        async move {
            let event = events.next().await?;
            let leader = Leader::of(&event.view, &agent, &compat);
            let frame = if event.is_change || last.as_ref() != Some(&leader) {
                leader.frame()
            } else {
                // A comment keeps the connection alive without an event.
                ":\n\n".to_owned()
            };
            Some((frame, (events, Some(leader))))
        }
    });
    Ok(super::events::stream_response(frames, connection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{HolderView, Lead};
    use crate::protocol::ids::{LeaseId, OwnerId};
    use crate::protocol::token::Token;
    use std::collections::BTreeMap;

    const TTL: Duration = Duration::from_secs(15);

    fn view(pod: &str, leads: bool) -> ElectionView {
        ElectionView {
            election: ElectionName::parse("e").unwrap(),
            lead: leads.then(|| Lead {
                lease: LeaseId::from("g.0"),
                valid_for: Duration::from_secs(1),
            }),
            holder: Some(HolderView {
                owner: OwnerId::from("app"),
                pod: pod.into(),
                token: Token::from_raw(7_000),
                acquired_at: WallTime(1_775_001_600_123_456),
                kept: false,
                metadata: BTreeMap::new(),
            }),
            token: Token::from_raw(7_000),
            age: None,
        }
    }

    #[test]
    fn the_own_pod_is_named_only_while_it_leads() {
        let election = ElectionName::parse("e").unwrap();
        let compat = Compat {
            election,
            nais: false,
        };
        let name = |pod, leads| Leader::from_view(&view(pod, leads), "a", TTL, &compat).name;
        assert_eq!(name("a", true), "a");
        assert_eq!(
            name("a", false),
            "",
            "as the store has it, after its deadline"
        );
        assert_eq!(name("b", false), "b");
    }

    #[test]
    fn other_leader_is_not_named_from_data_older_than_a_session_ttl() {
        let compat = Compat {
            election: ElectionName::parse("e").unwrap(),
            nais: false,
        };
        let name = |pod, leads, age| {
            let age = Some(age);
            let view = ElectionView {
                age,
                ..view(pod, leads)
            };
            Leader::from_view(&view, "a", TTL, &compat).name
        };
        let just_before = Duration::from_millis(14_999);
        assert_eq!(name("b", false, just_before), "b");
        assert_eq!(name("b", false, TTL), "");
        assert_eq!(name("a", true, TTL), "a", "it leads by its own deadline");
    }

    #[test]
    fn each_compatible_client_receives_its_own_format() {
        let compat = |nais| Compat {
            election: ElectionName::parse("e").unwrap(),
            nais,
        };
        let last = |compat| Leader::from_view(&view("b", false), "a", TTL, &compat).frame();
        assert_eq!(last(compat(false)), "data: {\"name\":\"b\"}\n\n");
        let nais = "data: {\"name\":\"b\",\"last_update\":\"2026-04-01T00:00:00Z\"}\n\n";
        assert_eq!(last(compat(true)), nais);
        assert_eq!(Leader::default().frame(), "data: {\"name\":\"\"}\n\n");
    }
}
