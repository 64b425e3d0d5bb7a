-- Removes the fence, with all tokens.
DROP VIEW leasehold_fence;
DROP TABLE leasehold_fences;
