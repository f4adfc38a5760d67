-- Changes pages of every kind; may be played again and again.
INSERT INTO plain SELECT m + i, md5((m + i)::text) FROM (SELECT max(id) AS m FROM plain) s, generate_series(1, 3000) i;
DELETE FROM plain WHERE id % 23 = 0;
UPDATE plain SET filler = filler || 'y' WHERE id % 31 = 0;
VACUUM plain;
INSERT INTO shapes
SELECT m + i, point(i % 5, i), ARRAY[i % 3, i], to_tsvector('simple', md5(i::text)), 'more ' || (m + i)
FROM (SELECT max(id) AS m FROM shapes) s, generate_series(1, 1000) i;
DELETE FROM shapes WHERE id % 17 = 0;
UPDATE shapes SET tags = tags || 6 WHERE id % 19 = 0;
VACUUM shapes;
SELECT nextval('counter') FROM generate_series(1, 40);
SELECT setval('untouched', 5);
INSERT INTO big SELECT m + i, repeat(md5(i::text), 300) FROM (SELECT max(id) AS m FROM big) s, generate_series(1, 20) i;
DELETE FROM shrunk WHERE id % 5 = 0;
VACUUM shrunk;
