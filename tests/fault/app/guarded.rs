//! The app's operations on the guarded resource: it writes to a register, reads it, and appends to
//! a log. Each is recorded in the history before it is sent.

use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use serde_json::Value;

use super::calls::{PATIENCE, answer};
use super::work::Done;
use super::{App, Held};
use crate::history::Op;
use crate::register::{Content, Put, Write};

impl App {
    /// Writes with the token.
    pub(super) async fn write(&mut self, held: &Held, in_hand: Duration) -> Result<Done> {
        let value = self.new_value();
        let op = Op::write(&held.resource, &held.lease, held.token, &value);
        let operation = self.recorder.invoke(op.clone())?;
        // The app has decided to write and has not sent the write yet. An app that is stopped here
        // is stale afterwards and cannot know it.
        tokio::time::sleep(in_hand).await;
        let write = Write {
            register: held.resource.clone(),
            token: held.token,
            value,
            process: self.config.name.clone(),
        };
        let url = format!("{}/write", self.config.register);
        let asked = self.http.post(url).json(&write);
        match answer(asked.timeout(PATIENCE)).await {
            Some((StatusCode::OK, _)) => self.recorder.ok(operation, op)?,
            Some((StatusCode::PRECONDITION_FAILED, _)) => {
                self.recorder.fail(operation, op)?;
                return Ok(Done::Refused);
            }
            _ => self.recorder.unknown(operation, op)?,
        }
        Ok(Done::Yes)
    }

    /// Reads the register, which needs no token.
    pub(super) async fn read(&mut self, register: &str) -> Result<Done> {
        let operation = self.recorder.invoke(Op::read(register))?;
        let url = format!("{}/read/{register}", self.config.register);
        match answer(self.http.get(url).timeout(PATIENCE)).await {
            Some((StatusCode::OK, content)) => {
                let Content { token, value } = serde_json::from_value(content)?;
                let saw = Op::saw(register, token, &value);
                self.recorder.ok(operation, saw)?;
            }
            _ => self.recorder.unknown(operation, Op::read(register))?,
        }
        Ok(Done::Yes)
    }

    /// Appends to the log: reads its length, pauses, and puts an entry at its end.
    pub(super) async fn append(&mut self, held: &Held, in_hand: Duration) -> Result<Done> {
        let (log, value) = (format!("{}.log", held.resource), self.new_value());
        let op = Op::append(&log, &held.lease, held.token, &value);
        let operation = self.recorder.invoke(op.clone())?;
        let length = match self.put(&log, held.token, None).await {
            Some((StatusCode::OK, length)) => length.as_u64(),
            Some((StatusCode::PRECONDITION_FAILED, _)) => {
                self.recorder.fail(operation, op)?;
                return Ok(Done::Refused);
            }
            _ => None,
        };
        let Some(length) = length else {
            // No answer arrived: not a refusal.
            self.recorder.unknown(operation, op)?;
            return Ok(Done::Unknown);
        };
        tokio::time::sleep(in_hand).await;
        let entry = (usize::try_from(length)?, value);
        match self.put(&log, held.token, Some(entry)).await {
            Some((StatusCode::OK, _)) => self.recorder.ok(operation, op)?,
            Some((StatusCode::PRECONDITION_FAILED, _)) => {
                self.recorder.fail(operation, op)?;
                return Ok(Done::Refused);
            }
            _ => {
                self.recorder.unknown(operation, op)?;
                return Ok(Done::Unknown);
            }
        }
        Ok(Done::Yes)
    }

    async fn put(
        &self,
        log: &str,
        token: u64,
        entry: Option<(usize, String)>,
    ) -> Option<(StatusCode, Value)> {
        let log = log.to_owned();
        let url = format!("{}/log", self.config.register);
        let asked = self.http.post(url).json(&Put { log, token, entry });
        answer(asked.timeout(PATIENCE)).await
    }

    fn new_value(&mut self) -> String {
        self.written += 1;
        format!("{}:{}", self.config.name, self.written)
    }
}
