-- Removes the fence, with all tokens.
DROP PROCEDURE leasehold_fence;
DROP TABLE leasehold_fences;
