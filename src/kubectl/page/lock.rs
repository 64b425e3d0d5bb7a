//! Everything about one lock, for its page.

use serde::Serialize;

use crate::crd::lock::ReleaseMode;
use crate::kubectl::describe::{Description, Item};
use crate::kubectl::release::preview;
use crate::kubectl::why;
use crate::kubectl::world::{LockSeen, World};
use crate::text::escape;

/// A lock.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockPage {
    /// The resource that the lock guards.
    pub resource: String,
    /// The namespace of the lock object.
    pub namespace: String,
    /// The name of the lock object.
    pub name: String,
    /// Whether it is held; absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// Names and values.
    pub facts: Vec<Fact>,
    /// Names and lines.
    pub sections: Vec<Section>,
    /// Why a pod waits for it, as `why` prints it.
    pub why: Vec<String>,
    /// What a release would do; absent if the lock is free.
    pub release: Option<Release>,
}

/// A name and a value.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// The name.
    pub name: &'static str,
    /// The value.
    pub value: String,
}

/// A name and lines.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// The name.
    pub name: &'static str,
    /// The lines.
    pub lines: Vec<String>,
}

/// What a release would do, and whether the user may request it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// The grant that it would end.
    pub lease_id: String,
    /// Whether the user has the rights.
    pub allowed: bool,
    /// Otherwise the missing right.
    pub missing: String,
    /// What a request to the holder does.
    pub ask: String,
    /// What ending the grant does.
    pub force: String,
}

impl LockPage {
    /// Returns the page of a lock. `missing` is the right that the user lacks for a release.
    #[must_use]
    pub fn new(
        world: &World,
        lock: &LockSeen,
        description: &Description,
        missing: Option<&str>,
    ) -> Self {
        let mut facts = Vec::new();
        let mut sections = Vec::new();
        for item in description.items() {
            match item.clone() {
                Item::Fact(name, value) => facts.push(Fact { name, value }),
                Item::Section(name, lines) => sections.push(Section { name, lines }),
            }
        }
        let why = why::explain(world, lock, None);
        Self {
            resource: escape(&lock.spec.resource).into_owned(),
            namespace: lock.namespace.clone(),
            name: lock.name.clone(),
            held: why.held,
            facts,
            sections,
            why: why.text(world).lines().map(str::to_owned).collect(),
            release: release(world, lock, missing),
        }
    }
}

fn release(world: &World, lock: &LockSeen, missing: Option<&str>) -> Option<Release> {
    let status = lock.status.as_ref().ok()?;
    let (holder, lease) = (status.holder.as_ref()?, status.lease.as_ref()?);
    Some(Release {
        lease_id: lease.id.clone(),
        allowed: missing.is_none(),
        missing: missing.unwrap_or_default().to_owned(),
        ask: preview(world, lock, holder, lease, ReleaseMode::Ask),
        force: preview(world, lock, holder, lease, ReleaseMode::Force),
    })
}
