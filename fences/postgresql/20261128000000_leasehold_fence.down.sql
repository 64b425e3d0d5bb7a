-- Removes the fence, with all tokens. Remove the triggers that call leasehold.require_fence() first.
DROP FUNCTION leasehold.require_fence();
DROP FUNCTION leasehold.fence(text, bigint);
DROP TABLE leasehold.fences;
DROP SCHEMA leasehold;
